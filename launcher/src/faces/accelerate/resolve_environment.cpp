#include "faces/accelerate/resolver.hpp"
#include "host/command_output.hpp"

#include <algorithm>
#include <array>
#include <set>

namespace acc::launcher {

using plugins::Device;
using plugins::Environment;
using plugins::Source;

namespace {

struct GpuModels {
  std::vector<std::string> names;
  std::string driver_version;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (const std::string_view line : plugins::split(text, '\n')) {
    lines.emplace_back(line);
  }
  return lines;
}

/// As nvidia-smi prints them, where the driver's libraries told us nothing.
GpuModels ask_nvidia_smi(const std::string& tool) {
  const auto query = [&](const std::string& what) {
    return lines_of(
        command_output({tool, "--query-gpu=" + what, "--format=csv,noheader"}).value_or(""));
  };
  GpuModels models;
  models.names = query("count,name");
  const auto versions = query("driver_version");
  models.driver_version = versions.empty() ? "" : versions.front();
  return models;
}

/// `550.40.07` as numbers, of which missing ones are 0.
std::array<std::int64_t, 3> version_numbers(const std::string& text) {
  std::array<std::int64_t, 3> numbers{};
  std::size_t i = 0;
  for (const std::string_view part : plugins::split(text, '.')) {
    if (i < numbers.size()) {
      numbers[i++] = plugins::parse_integer(part).value_or(0);
    }
  }
  return numbers;
}

/// Accelerate 1.15 (utils/environment.py): several RTX 40 cards cannot reach each other directly
/// under a driver older than this.
bool lacks_peer_access(const GpuModels& models) {
  constexpr std::array<std::int64_t, 3> kFirstGood = {550, 40, 7};
  const auto is_rtx_40 = [](const std::string& name) {
    return name.find("RTX 40") != std::string::npos;
  };
  return models.names.size() > 1 && std::ranges::any_of(models.names, is_rtx_40) &&
         !models.driver_version.empty() && version_numbers(models.driver_version) < kFirstGood;
}

}  // namespace

void Resolver::build_environment() {
  for (const plugins::SettingRow& row : plugins::settings_table()) {
    if (plugins::reaches_workers(row)) {  // an outer acclaunch's
      plan_.removed_variables.insert(plugins::own_variable(row));
    }
  }
  Environment& result = plan_.environment;
  result = plugins::settings_to_environment(settings_, origin(), plan_.device);
  if (plan_.mode == Mode::deepspeed) {
    result["ACCELERATE_CONFIG_DS_FIELDS"] = deepspeed_fields();
    result["PYTHONPATH"] = python_path();
  }
  if (plan_.mode == Mode::plain && starter_ != Starter::ranks) {
    add_simple_variables(result);
  } else if (asked_for_cpu() && conduct_.cpu_is_a_device) {
    result["ACCELERATE_USE_CPU"] = "True";
  }
  add_gpu_variables(result);
  if (const int threads = omp_threads(); threads > 0) {
    result["OMP_NUM_THREADS"] = std::to_string(threads);
  }
}

/// Those of Accelerate's simple launcher.
void Resolver::add_simple_variables(Environment& environment) const {
  const bool use_cpu = settings_.boolean("use_cpu");
  environment["ACCELERATE_USE_CPU"] = use_cpu ? "True" : "False";
  if (use_cpu) {
    environment["KMP_AFFINITY"] = "granularity=fine,compact,1,0";
    environment["KMP_BLOCKTIME"] = "1";
  }
  if (num_processes_ > 1 || num_machines_ > 1) {
    environment["MASTER_ADDR"] =
        settings_.has("main_process_ip") ? settings_.text("main_process_ip") : "127.0.0.1";
    environment["MASTER_PORT"] = std::to_string(plan_.rendezvous.port);
  }
}

void Resolver::add_gpu_variables(Environment& environment) const {
  std::string list;
  for (const std::string& id : plan_.gpu_ids) {
    list += (list.empty() ? "" : ",") + id;
  }
  if (!list.empty()) {
    environment["CUDA_VISIBLE_DEVICES"] = list;
  }
  if (plan_.mode == Mode::plain) {
    return;
  }
  GpuModels models;
  models.driver_version = facts_.gpu.driver_version;
  for (const Gpu& gpu : facts_.gpu.devices) {
    models.names.push_back(gpu.name);
  }
  const auto tool = find_in_path("nvidia-smi", environment_, facts_);
  if (models.names.empty() && tool) {
    models = ask_nvidia_smi(tool->string());
  }
  if (lacks_peer_access(models)) {
    for (const std::string name : {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"}) {
      if (!environment_.contains(name)) {
        environment[name] = "1";
      }
    }
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
  const bool leaves_it_to_torchrun = plan_.mode == Mode::deepspeed;  // in Accelerate
  if (starter_ == Starter::deepspeed) {
    return 0;
  }
  if (settings_.has("num_cpu_threads_per_process") &&
      (!leaves_it_to_torchrun || conduct_.shares_out_cores)) {
    return static_cast<int>(settings_.integer("num_cpu_threads_per_process"));
  }
  if (plugins::variable(environment_, "OMP_NUM_THREADS", "0") != "0") {
    return 0;
  }
  if (divides_cores()) {
    return std::max(1, cores_of_one());
  }
  return leaves_it_to_torchrun && plan_.local_world_size == 1 ? 0 : 1;
}

/// In Accelerate `--cpu` is `use_cpu` only where no file says what that is.
bool Resolver::counts_as_use_cpu() const {
  const plugins::Node* key = config_ ? config_->root.find("use_cpu") : nullptr;
  return config_ ? key != nullptr && key->text == "true" : settings_.boolean("use_cpu");
}

bool Resolver::divides_cores() const {
  if (plugins::variable(environment_, "OMP_NUM_THREADS", "0") != "0" ||
      settings_.has("num_cpu_threads_per_process")) {
    return false;
  }
  if (!conduct_.shares_out_cores) {
    return counts_as_use_cpu() && num_processes_ > 0 && plan_.mode != Mode::deepspeed;
  }
  return plan_.device == Device::cpu || plan_.numa_binding != NumaBinding::none;
}

int Resolver::cores_of_one() const {
  if (starter_ == Starter::ranks && conduct_.shares_out_cores) {
    return cores_per_worker(plan_.placements, facts_);
  }
  std::set<int> cores;
  for (const Cpu& cpu : facts_.cpus) {
    cores.insert(cpu.core);
  }
  return static_cast<int>(cores.size()) / local_processes();
}

int Resolver::local_processes() const {
  for (const std::string name :
       {"MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"}) {
    const auto size = plugins::parse_integer(plugins::variable(environment_, name));
    if (size && *size > 0) {
      return static_cast<int>(*size);
    }
  }
  return std::max(1, num_processes_ / num_machines_);
}

}  // namespace acc::launcher
