#include "faces/accelerate/resolver.hpp"

#include <algorithm>

namespace acc::launcher {

using plugins::Device;
using plugins::Source;

void Resolver::build_environment() {
  for (const plugins::SettingRow& row : plugins::settings_table()) {
    plan_.removed_variables.insert(plugins::own_variable(row));  // an outer acclaunch's
  }
  plugins::Environment& result = plan_.environment;
  result = plugins::settings_to_environment(settings_, origin(), plan_.device);
  if (plan_.mode == Mode::deepspeed) {
    result["ACCELERATE_CONFIG_DS_FIELDS"] = deepspeed_fields();
    result["PYTHONPATH"] = python_path();
  }
  if (plan_.mode == Mode::plain) {
    result["ACCELERATE_USE_CPU"] = settings_.boolean("use_cpu") ? "True" : "False";
  } else if (settings_.boolean("use_cpu")) {
    result["ACCELERATE_USE_CPU"] = "True";
  }
  if (!plan_.gpu_ids.empty()) {
    std::string list;
    for (const std::string& id : plan_.gpu_ids) {
      list += (list.empty() ? "" : ",") + id;
    }
    result["CUDA_VISIBLE_DEVICES"] = list;
  }
  if (const int threads = omp_threads(); threads > 0) {
    result["OMP_NUM_THREADS"] = std::to_string(threads);
  }
}

std::string Resolver::deepspeed_fields() const {
  std::string fields;
  for (const std::string& field : file_.deepspeed_fields) {
    if (field == "mixed_precision" && settings_.source(field).kind != Source::Kind::file) {
      continue;  // a flag took its place
    }
    fields += (fields.empty() ? "" : ",") + plugins::lower(field);
  }
  return fields;
}

std::string Resolver::python_path() const {
  std::string path;
  const std::string inherited = plugins::variable(environment_, "PYTHONPATH");
  for (const std::string_view entry : plugins::split(inherited, ':')) {
    if (!entry.empty()) {
      path += std::string(entry) + ":";
    }
  }
  return path + facts_.working_directory.string();
}

int Resolver::omp_threads() const {
  if (settings_.has("num_cpu_threads_per_process")) {
    return static_cast<int>(settings_.integer("num_cpu_threads_per_process"));
  }
  const std::string inherited = plugins::variable(environment_, "OMP_NUM_THREADS", "0");
  if (inherited != "0") {
    return 0;
  }
  const bool has_cores = plan_.device == Device::cpu || plan_.numa_binding != NumaBinding::none;
  return has_cores ? cores_per_worker(plan_.placements, facts_) : 1;
}

}  // namespace acc::launcher
