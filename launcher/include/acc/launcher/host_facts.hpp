#pragma once

#include "acc/launcher/gpu_facts.hpp"
#include "acc/plugins/environment.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace acc::launcher {

/// A hardware thread, which the kernel calls a CPU, and what it is part of.
struct Cpu {
  int id = 0;         ///< the kernel's number, by which processes are bound
  int core = 0;       ///< physical core; counted over the machine, as the next two
  int cache = 0;      ///< last-level cache: a core complex
  int socket = 0;     ///< package
  int numa_node = 0;  ///< whose memory is nearest; the kernel's number
};

/// What the decisions need to know of this machine and process. Tests fill it in by hand.
struct HostFacts {
  std::vector<Cpu> cpus = {Cpu{}};  ///< those that this process may run on, by rising id
  GpuFacts gpu;                     ///< what the driver shows
  std::vector<int> visible_gpus;    ///< of those, the ones that CUDA_VISIBLE_DEVICES leaves
  std::string hostname;
  std::string domain_name;  ///< "job-1.svc.ns.svc.cluster.local", as /etc/hosts says it; or empty
  /// Command lines of the processes that this one descends from, its own kind left out; the nearest
  /// first. Only under Slurm and PMI, where they tell what no variable does.
  std::vector<std::vector<std::string>> ancestors;
  std::filesystem::path working_directory;
  std::filesystem::path executable_directory;  ///< where acclaunch itself lies
  std::filesystem::path scratch_directory;     ///< unique to this run, not made yet
};

/// As the kernel has it.
std::string host_name();

/// Asks the machine. ACC_SYS_ROOT says where sysfs is, if not in /sys. With ACC_SIMULATE_GPUS=N
/// there are N GPUs that need not exist, spread over the NUMA nodes. Throws Error(config) where
/// that is no number of GPUs.
HostFacts detect_host_facts(const plugins::Environment& environment);

}  // namespace acc::launcher
