// SPDX-License-Identifier: Apache-2.0
// Stages `choose_device` and `choose_cores`: CPU or GPUs, which GPUs the workers see, whether they
// are enough, and which cores each worker is bound to.
#include "accelerate_cli/stages.hpp"
#include "host/own_variables.hpp"

#include <algorithm>

namespace acc::launcher::accelerate_cli {
namespace {

using settings::Device;

void check_use_cpu(const AccelerateDraft& draft, Mode mode) {
  const bool both = mode == Mode::multi_gpu && draft.use_cpu();
  if (both && draft.policy.checks_contradictions) {
    throw Error(Errc::config, draft.place("use_cpu"_key) + " true contradicts " +
                                  (draft.mode_flag(mode) ? "--" + mode_key(mode).text()
                                                         : draft.file.distributed_type_where +
                                                               ": distributed_type MULTI_GPU") +
                                  "; remove one of them");
  }
}

/// Returns the message for a gpu_ids entry that names no GPU. For a UUID it lists the UUIDs of this
/// machine, MIG devices included.
std::string unknown_gpu(const std::string& id, const std::vector<Gpu>& devices) {
  const bool by_name = id.starts_with("GPU-") || id.starts_with("MIG-");
  if (!by_name && !parse_integer(id)) {
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

/// Translates gpu_ids to device indices. Throws Error(config) for an unknown or repeated GPU if the
/// policy checks GPUs.
std::vector<int> indices_of(const AccelerateDraft& draft, const std::vector<std::string>& gpu_ids) {
  std::vector<int> indices;
  for (const std::string& id : gpu_ids) {
    const auto gpu = find_gpu(id, draft.facts.gpu.devices);
    const bool twice = gpu && std::ranges::find(indices, *gpu) != indices.end();
    if (gpu && !twice) {
      indices.push_back(*gpu);
    } else if (draft.policy.checks_gpus) {
      throw Error(Errc::config,
                  draft.place("gpu_ids"_key) + (gpu ? " names GPU " + std::to_string(*gpu) +
                                                          " twice; CUDA would then show none"
                                                    : unknown_gpu(id, draft.facts.gpu.devices)));
    }
  }
  return indices;
}

/// Returns the GPUs that gpu_ids selects, else the visible ones; `device` is still the CPU.
DeviceChoice read_gpu_ids(const AccelerateDraft& draft, Mode mode) {
  DeviceChoice choice = {.worker_gpus = draft.facts.visible_gpus};
  const std::string& text = draft.settings.text("gpu_ids"_key);
  if (text.empty() || lower(text) == "all") {
    return choice;
  }
  choice.gpu_ids = draft.settings.list("gpu_ids"_key);
  if (choice.gpu_ids.empty() && draft.policy.checks_gpus) {
    throw Error(Errc::config,
                draft.place("gpu_ids"_key) + unknown_gpu(text, draft.facts.gpu.devices));
  }
  if (!asked_for_cpu(draft, mode) && !draft.facts.gpu.devices.empty()) {
    choice.worker_gpus = indices_of(draft, choice.gpu_ids);
  }
  return choice;
}

/// With a configuration file, Accelerate rejects a single GPU id for MULTI_GPU on one machine.
void check_several_gpus(const AccelerateDraft& draft, const Workers& workers,
                        const std::vector<std::string>& gpu_ids) {
  if (!draft.arguments && draft.config && workers.mode == Mode::multi_gpu &&
      workers.num_machines == 1 && gpu_ids.size() == 1) {
    throw Error(Errc::config, draft.place("gpu_ids"_key) + " " + gpu_ids.front() +
                                  " is one GPU, but MULTI_GPU is for several; list more with "
                                  "--gpu_ids, or remove MULTI_GPU" +
                                  (draft.file.distributed_type == "MULTI_GPU"
                                       ? " (" + draft.file.distributed_type_where + ")"
                                       : ""));
  }
}

/// Throws Error(device) if this machine has fewer GPUs than workers. With one launcher per rank, a
/// launcher that sees a single GPU was given that GPU by the manager; one that sees more shares
/// them with the other launchers of the machine.
void check_enough_gpus(const AccelerateDraft& draft, const DeviceChoice& choice,
                       const RankLayout& layout) {
  const auto gpus = static_cast<int>(choice.worker_gpus.size());
  const int needed =
      layout.rank_slot && gpus > 1 ? layout.rank_slot->local_world_size : layout.local_world_size;
  if (gpus >= needed || !draft.policy.checks_gpus || plan::shares_gpus(draft.environment)) {
    return;
  }
  throw Error(Errc::device,
              std::to_string(needed) + " processes on this machine need one GPU each, but there " +
                  (gpus == 1 ? "is 1" : "are " + std::to_string(gpus)) +
                  (choice.gpu_ids.empty() ? "" : " in " + draft.place("gpu_ids"_key)) +
                  "; lower --num_processes, share the GPUs with ACC_SHARE_GPUS=1, "
                  "or pass --cpu");
}

/// Returns the reason why the workers have no GPU, for a notice.
std::string no_gpu(const AccelerateDraft& draft) {
  if (!draft.facts.gpu.devices.empty()) {
    return "CUDA_VISIBLE_DEVICES=" +
           host::value_of(draft.environment, host::variables.cuda_visible_devices) +
           " selects none of this machine's " + std::to_string(draft.facts.gpu.devices.size()) +
           " GPUs";
  }
  return draft.facts.gpu.driver_version.empty()
             ? "no GPU on this machine"
             : "no GPU on this machine, though NVIDIA's driver " + draft.facts.gpu.driver_version +
                   " is installed";
}

/// Adds the notice that there is no GPU.
void notice_cpu(AccelerateDraft& draft, const Workers& workers, const RankLayout& layout) {
  const bool several = layout.num_processes > 1 && workers.launcher == ProgramLauncher::ranks &&
                       workers.mode != Mode::deepspeed;
  draft.notice(no_gpu(draft) + ": the " +
               (layout.local_world_size == 1 ? "worker runs" : "workers run") + " on the CPU" +
               (several && !draft.policy.cpu_is_a_device
                    ? "; as with accelerate launch, each trains alone, unless the program itself "
                      "asks Accelerate for the CPU (Accelerator(cpu=True), use_cpu of a Trainer)"
                    : ""));
}

NumaBinding binding(const AccelerateDraft& draft) {
  const NumaBinding named = numa_binding(draft.settings.choice("numa_binding"_key));
  if (!draft.settings.boolean("enable_cpu_affinity"_key)) {
    return named;
  }
  if (named != NumaBinding::none) {
    // Accelerate in the program would bind again because of ACCELERATE_CPU_AFFINITY.
    throw Error(Errc::config, draft.place("numa_binding"_key) + " and " +
                                  draft.place("enable_cpu_affinity"_key) +
                                  " both bind workers to cores; remove one of them");
  }
  return NumaBinding::affinity;
}

}  // namespace

bool asked_for_cpu(const AccelerateDraft& draft, Mode mode) {
  const bool said = draft.cpu_flag() || draft.use_cpu() ||
                    (draft.file.distributed_type == "MULTI_CPU" && mode == Mode::plain);
  return said && (draft.policy.cpu_is_a_device || mode == Mode::plain);
}

DeviceChoice choose_device(AccelerateDraft& draft, const Workers& workers,
                           const RankLayout& layout) {
  check_use_cpu(draft, workers.mode);
  DeviceChoice choice = read_gpu_ids(draft, workers.mode);
  check_several_gpus(draft, workers, choice.gpu_ids);
  if (asked_for_cpu(draft, workers.mode)) {
    return choice;
  }
  if (choice.worker_gpus.empty()) {
    if (workers.mode != Mode::plain || !choice.gpu_ids.empty()) {
      notice_cpu(draft, workers, layout);
    }
    return choice;
  }
  check_enough_gpus(draft, choice, layout);
  choice.device = Device::cuda;
  return choice;
}

Binding choose_cores(AccelerateDraft& draft, const DeviceChoice& device, const RankLayout& layout) {
  std::vector<int> gpus;
  if (device.device == Device::cuda) {
    gpus = device.worker_gpus;
    const auto own = static_cast<std::size_t>(first_local_rank(layout));
    if (layout.rank_slot && own < gpus.size()) {
      gpus = {gpus[own]};
    }
  }
  return plan::bind_workers(draft, binding(draft), layout.local_world_size, gpus, draft.facts);
}

}  // namespace acc::launcher::accelerate_cli
