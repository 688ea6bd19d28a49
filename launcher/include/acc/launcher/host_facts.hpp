#pragma once

#include "acc/plugins/environment.hpp"

#include <filesystem>
#include <string>

namespace acc::launcher {

/// What the decisions need to know of this machine and process. Tests fill it in by hand.
struct HostFacts {
  int cores = 1;          ///< that this process may run on
  int physical_gpus = 0;  ///< that the driver shows
  int gpus = 0;           ///< of those, the ones that CUDA_VISIBLE_DEVICES leaves
  std::string hostname;
  std::filesystem::path working_directory;
  std::filesystem::path executable_directory;  ///< where acclaunch itself lies
  std::filesystem::path scratch_directory;     ///< unique to this run, not made yet
};

/// Asks the machine. CUDA is not linked: the driver's library is opened if there is one.
HostFacts detect_host_facts(const plugins::Environment& environment);

/// How many of `physical` GPUs a CUDA_VISIBLE_DEVICES text leaves: CUDA stops reading it at the
/// first entry that names none.
int visible_gpus(const std::string& list, int physical);

}  // namespace acc::launcher
