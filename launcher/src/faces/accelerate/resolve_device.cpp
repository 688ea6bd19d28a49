#include "faces/accelerate/resolver.hpp"

#include <algorithm>

namespace acc::launcher {

using plugins::Device;
using plugins::Source;

void Resolver::choose_device() {
  check_use_cpu();
  read_gpu_ids();
  check_several_gpus();
  if (asked_for_cpu()) {
    return;
  }
  if (worker_gpus_.empty()) {
    notice_cpu();
    return;
  }
  check_enough_gpus();
  plan_.device = Device::cuda;
}

void Resolver::check_use_cpu() const {
  const bool both = plan_.mode == Mode::multi_gpu && settings_.boolean("use_cpu");
  if (both && conduct_.checks_contradictions) {
    throw Error(Errc::config,
                place("use_cpu") + " true contradicts " +
                    (settings_.boolean("multi_gpu")
                         ? "--multi_gpu"
                         : file_.distributed_type_where + ": distributed_type MULTI_GPU") +
                    "; take one out");
  }
}

/// In Accelerate's own reading `use_cpu` is for one plain process.
bool Resolver::asked_for_cpu() const {
  const bool said = cpu_flag() || settings_.boolean("use_cpu") ||
                    (file_.distributed_type == "MULTI_CPU" && plan_.mode == Mode::plain);
  return said && (conduct_.cpu_is_a_device || plan_.mode == Mode::plain);
}

void Resolver::read_gpu_ids() {
  worker_gpus_ = facts_.visible_gpus;
  const std::string& text = settings_.text("gpu_ids");
  if (text.empty() || plugins::lower(text) == "all") {
    return;
  }
  plan_.gpu_ids = settings_.list("gpu_ids");
  if (plan_.gpu_ids.empty() && conduct_.checks_gpus) {
    throw Error(Errc::config, place("gpu_ids") + unknown_gpu(text));
  }
  if (!asked_for_cpu() && !facts_.gpu.devices.empty()) {
    check_gpu_ids();
  }
}

void Resolver::check_gpu_ids() {
  worker_gpus_.clear();
  for (const std::string& id : plan_.gpu_ids) {
    const auto gpu = find_gpu(id, facts_.gpu.devices);
    const bool twice = gpu && std::ranges::find(worker_gpus_, *gpu) != worker_gpus_.end();
    if (gpu && !twice) {
      worker_gpus_.push_back(*gpu);
    } else if (conduct_.checks_gpus) {
      throw Error(Errc::config, place("gpu_ids") + (gpu ? " names GPU " + std::to_string(*gpu) +
                                                              " twice; CUDA would then show none"
                                                        : unknown_gpu(id)));
    }
  }
}

void Resolver::check_several_gpus() const {
  if (config_ && plan_.mode == Mode::multi_gpu && num_machines_ == 1 && plan_.gpu_ids.size() == 1) {
    throw Error(Errc::config, place("gpu_ids") + " " + plan_.gpu_ids.front() +
                                  " is one GPU, but MULTI_GPU is for several; name more with "
                                  "--gpu_ids, or take MULTI_GPU out" +
                                  (file_.distributed_type == "MULTI_GPU"
                                       ? " (" + file_.distributed_type_where + ")"
                                       : ""));
  }
}

void Resolver::check_enough_gpus() const {
  const auto gpus = static_cast<int>(worker_gpus_.size());
  const std::string share = plugins::variable(environment_, "ACC_SHARE_GPUS", "0");
  if (gpus >= plan_.local_world_size || !conduct_.checks_gpus ||
      plugins::parse_boolean(share).value_or(false)) {
    return;
  }
  throw Error(Errc::device, std::to_string(plan_.local_world_size) +
                                " processes on this machine need as many GPUs, but there " +
                                (gpus == 1 ? "is 1" : "are " + std::to_string(gpus)) +
                                (plan_.gpu_ids.empty() ? "" : " in " + place("gpu_ids")) +
                                "; lower --num_processes, let them share with ACC_SHARE_GPUS=1, "
                                "or give --cpu");
}

std::string Resolver::no_gpu() const {
  if (!facts_.gpu.devices.empty()) {
    return "CUDA_VISIBLE_DEVICES=" + plugins::variable(environment_, "CUDA_VISIBLE_DEVICES") +
           " leaves none of this machine's " + std::to_string(facts_.gpu.devices.size()) + " GPUs";
  }
  return facts_.gpu.driver_version.empty() ? "no GPU on this machine"
                                           : "no GPU on this machine, though NVIDIA's driver " +
                                                 facts_.gpu.driver_version + " is installed";
}

std::string Resolver::unknown_gpu(const std::string& id) const {
  const auto& devices = facts_.gpu.devices;
  const bool by_name = id.starts_with("GPU-") || id.starts_with("MIG-");
  if (!by_name && !plugins::parse_integer(id)) {
    return " must be all, or numbers or UUIDs joined by commas, got \"" + id + "\"";
  }
  std::string there;
  for (std::size_t i = 0; by_name && i < devices.size(); ++i) {
    there += (i == 0 ? ": " : ", ") + devices[i].uuid;
    for (const std::string& partition : devices[i].partitions) {
      there += ", " + partition;
    }
  }
  return " names GPU " + id + ", but this machine has " + std::to_string(devices.size()) +
         (by_name ? there : ", numbered from 0");
}

void Resolver::notice_cpu() {
  if (plan_.mode == Mode::plain && plan_.gpu_ids.empty()) {
    return;
  }
  const std::string what = plan_.mode == Mode::fsdp        ? "FSDP runs"
                           : plan_.mode == Mode::deepspeed ? "ZeRO runs"
                           : plan_.local_world_size == 1   ? "the program runs"
                                                           : "MULTI_GPU runs";
  notice(no_gpu() + ": " + what + " on the CPU");
}

NumaBinding Resolver::binding() const {
  const NumaBinding named = numa_binding(settings_.choice("numa_binding"));
  if (!settings_.boolean("enable_cpu_affinity")) {
    return named;
  }
  if (named != NumaBinding::none) {
    // Accelerate in the program would bind anew by ACCELERATE_CPU_AFFINITY.
    throw Error(Errc::config, place("numa_binding") + " and " + place("enable_cpu_affinity") +
                                  " both say where workers run; take one out");
  }
  return NumaBinding::affinity;
}

void Resolver::place_on_cores() {
  plan_.numa_binding = binding();
  const bool on_gpus = plan_.device == Device::cuda;
  Placements placements = acc::launcher::place_workers(plan_.local_world_size,
                                                       on_gpus ? worker_gpus_ : std::vector<int>{},
                                                       plan_.numa_binding, facts_);
  plan_.gpus = facts_.gpu;
  plan_.placements = std::move(placements.workers);
  for (std::string& line : placements.notices) {
    notice(std::move(line));
  }
}

}  // namespace acc::launcher
