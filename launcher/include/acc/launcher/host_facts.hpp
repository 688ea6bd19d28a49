#pragma once

#include "acc/launcher/gpu_facts.hpp"
#include "acc/plugins/environment.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace acc::launcher {

struct NumaNode {
  int id = 0;
  std::vector<int> cores;  ///< of it, those that this process may run on
};

/// What the decisions need to know of this machine and process. Tests fill it in by hand.
struct HostFacts {
  std::vector<int> cores = {0};  ///< numbers of those that this process may run on
  std::vector<NumaNode> numa_nodes;
  GpuFacts gpu;                   ///< what the driver shows
  std::vector<int> visible_gpus;  ///< of those, the ones that CUDA_VISIBLE_DEVICES leaves
  std::string hostname;
  std::filesystem::path working_directory;
  std::filesystem::path executable_directory;  ///< where acclaunch itself lies
  std::filesystem::path scratch_directory;     ///< unique to this run, not made yet
};

/// Asks the machine. ACC_SYS_ROOT says where sysfs is, if not in /sys. ACC_SIMULATE_GPUS=N takes
/// the place of the driver's answer with N GPUs that do not exist, to plan for them on a machine
/// without. Throws Error(config) where that is no number of GPUs.
HostFacts detect_host_facts(const plugins::Environment& environment);

}  // namespace acc::launcher
