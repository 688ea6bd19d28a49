// SPDX-License-Identifier: Apache-2.0
// OMP_NUM_THREADS of the workers. Accelerate sets it to a share of the physical cores with --cpu
// and to 1 otherwise; acclaunch gives every worker on the CPU, or bound to cores, its share
// (docs/compat.md, 10).
#include "accelerate_cli/python_values.hpp"
#include "accelerate_cli/stages.hpp"
#include "host/own_variables.hpp"
#include "host/topology.hpp"

#include <algorithm>

namespace acc::launcher::accelerate_cli {
namespace {

/// Returns the number of processes that share the cores of this machine: from the variables of the
/// mpirun that started acclaunch, else the workers per machine.
int local_processes(const AccelerateDraft& draft, const Workers& workers) {
  for (const host::OwnVariable& size_of_node :
       {host::variables.mpi_local_size, host::variables.open_mpi_local_size,
        host::variables.mvapich_local_size}) {
    const auto size = parse_integer(value_of(draft.environment, size_of_node));
    if (size && *size > 0) {
      return static_cast<int>(*size);
    }
  }
  return std::max(1, workers.num_processes / workers.num_machines);
}

/// Returns the number of physical cores per worker, rounded down; may be 0.
int cores_of_one(const AccelerateDraft& draft, const Workers& workers, const RankLayout& layout,
                 const Binding& binding) {
  if (!layout.rank_slot && workers.launcher == ProgramLauncher::ranks &&
      draft.policy.shares_out_cores) {
    return cores_per_worker(binding.workers, draft.facts);
  }
  const auto cores = static_cast<int>(host::grouped(draft.facts.cpus, &Cpu::core).size());
  // With a rank slot the other workers of this machine have their own launchers.
  return cores /
         (layout.rank_slot ? layout.rank_slot->local_world_size : local_processes(draft, workers));
}

/// True if Accelerate treats the launch as use_cpu. Accelerate's --cpu flag sets use_cpu only
/// without a configuration file; with a file only its key counts.
bool counts_as_use_cpu(const AccelerateDraft& draft) {
  if (!draft.config) {
    return draft.use_cpu();
  }
  const documents::Node* key = draft.config->root.find("use_cpu");
  return key != nullptr && python::is_true(*key);
}

/// True if OMP_NUM_THREADS is to be a share of the physical cores.
bool divides_cores(const AccelerateDraft& draft, const Workers& workers, settings::Device device,
                   NumaBinding policy) {
  if (host::value_of(draft.environment, host::variables.omp_num_threads, "0") != "0" ||
      draft.settings.has("num_cpu_threads_per_process"_key)) {
    return false;
  }
  if (!draft.policy.shares_out_cores) {
    return counts_as_use_cpu(draft) && workers.num_processes > 0 && workers.mode != Mode::deepspeed;
  }
  return device == settings::Device::cpu || policy != NumaBinding::none;
}

}  // namespace

// Order: --num_cpu_threads_per_process, a value of the parent other than 0, a share of the cores,
// 1. In DeepSpeed mode Accelerate sets nothing, and torchrun sets 1 for several workers.
Threads choose_threads(const AccelerateDraft& draft, const Workers& workers,
                       const RankLayout& layout, settings::Device device, const Binding& binding) {
  const bool leaves_it_to_torchrun = workers.mode == Mode::deepspeed;  // in Accelerate
  if (workers.launcher == ProgramLauncher::deepspeed) {
    return {};
  }
  if (draft.settings.has("num_cpu_threads_per_process"_key) &&
      (!leaves_it_to_torchrun || draft.policy.shares_out_cores)) {
    return {static_cast<int>(draft.settings.integer("num_cpu_threads_per_process"_key))};
  }
  if (host::value_of(draft.environment, host::variables.omp_num_threads, "0") != "0") {
    return {};
  }
  const bool keeps_0 =
      !draft.policy.shares_out_cores &&
      draft.environment.contains(std::string(host::variables.omp_num_threads.name));
  if (divides_cores(draft, workers, device, binding.policy)) {
    const int share = cores_of_one(draft, workers, layout, binding);
    if (share > 1 || !keeps_0) {
      return {std::max(1, share), true};
    }
  }
  if (keeps_0 || (leaves_it_to_torchrun && layout.local_world_size == 1)) {
    return {};
  }
  return {1};
}

std::string flag_of(Threads threads) {
  return "--num_cpu_threads_per_process " + std::to_string(threads.count);
}

}  // namespace acc::launcher::accelerate_cli
