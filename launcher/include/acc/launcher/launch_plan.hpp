#pragma once

#include "acc/launcher/placement.hpp"
#include "acc/plugins/environment.hpp"
#include "acc/plugins/settings.hpp"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace acc::launcher {

/// What the workers are, apart from how their state is sharded.
enum class Mode { plain, multi_gpu, fsdp, deepspeed };

/// All that is decided before anything is started. Built once by `resolve()`; nothing later reads a
/// flag, a file or the environment. `settings` keeps every value with its source for `explain`.
struct LaunchPlan {
  std::vector<std::string> command;  ///< program and its arguments, ready for exec
  std::string working_directory;

  Mode mode = Mode::plain;
  plugins::Device device = plugins::Device::cpu;
  std::vector<std::string> gpu_ids;  ///< empty: leave CUDA_VISIBLE_DEVICES as it is

  GpuFacts gpus;                      ///< of this machine, for `explain`
  std::vector<Placement> placements;  ///< of this machine's workers, by local rank

  int num_machines = 1;
  int machine_rank = 0;
  int num_processes = 1;     ///< over all machines
  int local_world_size = 1;  ///< on this machine

  std::string main_process_ip = "127.0.0.1";
  std::uint16_t main_process_port = 29500;
  bool port_was_given = false;  ///< a given port that is in use is an error, the default one is not
  std::string run_id = "none";
  std::chrono::seconds join_timeout{900};
  std::chrono::seconds shutdown_timeout{30};

  /// Folder for TORCHELASTIC_ERROR_FILE of each worker, unique to this run. Whoever starts the
  /// workers makes the folder of each file, and removes all of it in the end.
  std::string error_directory;

  /// What the workers get besides torchrun's identity variables, which `worker_environment` adds.
  plugins::Environment environment;
  plugins::Settings settings;
  std::vector<std::string> notices;  ///< one line each, printed once before the start
};

/// The complete environment of one worker: the parent's, the plan's, and torchrun's variables for
/// this rank. `port` is the store's real port.
plugins::Environment worker_environment(const LaunchPlan& plan, const plugins::Environment& parent,
                                        int local_rank, std::uint16_t port);

}  // namespace acc::launcher
