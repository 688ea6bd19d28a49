// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/machine.hpp"
#include "acc/launcher/gpu_facts.hpp"
#include "acc/settings/environment.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace acc::launcher {
/// A hardware thread, which the kernel calls a CPU, with its place in the topology. Indices count
/// from 0 over the whole machine unless they are the kernel's.
struct Cpu {
  int id = 0;         ///< the kernel's number, used to bind processes
  int core = 0;       ///< index of the physical core
  int cache = 0;      ///< index of the last-level cache (core complex)
  int socket = 0;     ///< index of the package
  int numa_node = 0;  ///< NUMA node with the nearest memory; the kernel's number
};

/// Facts about this machine and process that planning depends on. A planner reads nothing else from
/// the machine, so tests fill in this struct by hand.
struct HostFacts {
  std::vector<Cpu> cpus = {Cpu{}};  ///< CPUs that this process may run on, by ascending id
  GpuFacts gpu;                     ///< all GPUs that the driver reports
  std::vector<int> visible_gpus;    ///< indices of the GPUs that CUDA_VISIBLE_DEVICES selects
  std::string hostname;
  std::string domain_name;  ///< "job-1.svc.ns.svc.cluster.local", from /etc/hosts; or empty
  /// Command lines of the ancestor processes, the nearest first, without other acclaunch processes.
  /// Filled only under Slurm and PMI, where they hold facts that no variable does.
  std::vector<std::vector<std::string>> ancestors;
  std::filesystem::path working_directory;
  std::filesystem::path executable_directory;  ///< folder of the acclaunch executable
  /// Folder that has the Python package acclaunch of this build or installation; empty if none has.
  std::filesystem::path python_packages;
  std::filesystem::path scratch_directory;  ///< unique to this run; not created yet
};

using acc::host_name;

/// Collects the facts of this machine. ACC_SYS_ROOT replaces /sys. ACC_SIMULATE_GPUS=N replaces the
/// GPUs by N simulated ones, spread over the NUMA nodes; throws Error(config) if N is not a valid
/// number of GPUs.
HostFacts detect_host_facts(const settings::Environment& environment);

/// Returns the path of the configuration file that Accelerate uses without --config_file:
/// `$HF_HOME/accelerate/default_config.yaml`. The file need not exist.
std::filesystem::path default_config_path(const settings::Environment& environment);

}  // namespace acc::launcher
