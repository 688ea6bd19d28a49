// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/accelerate_config.hpp"
#include "acc/documents/document.hpp"
#include "acc/settings/faults.hpp"
#include "accelerate_cli/arguments.hpp"
#include "accelerate_cli/compat_policy.hpp"
#include "plan/draft.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::accelerate_cli {

/// How the program is started: as ranks of acclaunch, as one plain process, or by mpirun or the
/// deepspeed command.
enum class ProgramLauncher { ranks, one_process, mpirun, deepspeed };

/// One launcher per rank: the rank of this launcher's only worker.
struct OwnRank {
  RankSlot slot;
  int rank = 0;
};

/// Role of this launcher in the job: what the job manager that started it says, or `--hostfile`.
struct JobRole {
  JobManager manager;
  bool is_controlled = false;  ///< as LaunchPlan::is_controlled
  std::string run_id;          ///< empty: the manager gives none
  std::optional<OwnRank> own_rank;
  std::vector<int> local_sizes;  ///< workers by machine rank, if job or hostfile gives them
  std::optional<RemoteLaunchPlan> start;  ///< set if this process only starts other launchers
};

/// Address of machine 0.
struct MainAddress {
  std::string host = "127.0.0.1";
  std::uint16_t port = 29500;   ///< torchrun's default
  std::string given_by;         ///< flag, variable or place that gives the host; empty: none does
  bool port_was_given = false;  ///< as RendezvousPlan::port_was_given
};

/// Workers of the job as they are requested.
struct Workers {
  /// On all machines, as Accelerate counts them: 0 if one plain process is started in compatibility
  /// mode on a machine without GPUs.
  int num_processes = 1;
  int num_machines = 1;
  Mode mode = Mode::plain;  ///< the chosen one, or Accelerate's default for several GPUs
  ProgramLauncher launcher = ProgramLauncher::ranks;
  MainAddress main{};
  int machine_rank = 0;
  bool machine_rank_was_given = false;
  std::optional<Sourced<std::string>> mpirun_hosts{};  ///< host file, if mpirun starts the workers
};

/// Device of the workers.
struct DeviceChoice {
  settings::Device device = settings::Device::cpu;
  std::vector<std::string> gpu_ids{};  ///< empty: leave CUDA_VISIBLE_DEVICES unchanged
  std::vector<int>
      worker_gpus{};  ///< GPUs that workers may use, as indices of the driver's devices
};

/// OMP_NUM_THREADS of a worker.
struct Threads {
  int count = 0;               ///< 0: keep the parent's value
  bool is_core_share = false;  ///< computed as a share of the physical cores
};

/// Draft of a plan for `acclaunch launch`.
struct AccelerateDraft : plan::Draft {
  AccelerateDraft(const Flags& given_flags, const settings::Environment& parent,
                  const HostFacts& host);

  const CompatPolicy& policy;
  std::optional<documents::Document> config;
  documents::AccelerateConfig file;  ///< facts in `config` that are no settings
  /// Arguments with Accelerate's own semantics. Set in compatibility mode, where the workers'
  /// variables are derived from these instead of the settings.
  std::optional<Arguments> arguments;

  /// True if --cpu (or --use_cpu) is given as a flag.
  [[nodiscard]] bool cpu_flag() const { return flags.find("use_cpu"_key) != nullptr; }
  /// The same, also if the file says so.
  [[nodiscard]] bool use_cpu() const { return settings.boolean("use_cpu"_key); }
  /// True if Python programs keep torch's engine.
  [[nodiscard]] bool keeps_engine() const { return settings.choice("engine"_key) == "torch"; }
  /// True if the flag for a mode is given.
  [[nodiscard]] bool mode_flag(Mode mode) const { return settings.boolean(mode_key(mode)); }
};

// The stages of planning, in order. A stage is a function over the draft and the results of earlier
// stages; it throws Error for a fault. The planner then skips the stages that need its result, and
// reports the faults of all other stages together.

/// Reads the configuration file, ACC_COMPAT and the flags.
void read_values(AccelerateDraft& draft);
/// Reads machines, ranks, address and port from the job manager that started this process, or from
/// `--hostfile`, and decides whether the machines are started from here.
JobRole take_job_environment(AccelerateDraft& draft);
/// Chooses the training mode.
Mode choose_mode(AccelerateDraft& draft);
/// Adds notices for flags and blocks of the file that have no effect in this mode.
void check_mode(AccelerateDraft& draft, Mode mode);
/// Counts machines and workers, and decides what starts them.
Workers count_workers(AccelerateDraft& draft, const JobRole& role, Mode mode);
/// Divides the workers among the machines, and checks that the machines can meet. The result counts
/// the workers that acclaunch starts: one process if something else starts the ranks.
RankLayout split_workers(const AccelerateDraft& draft, const JobRole& role, const Workers& workers);
/// Chooses CPU or GPUs, and which GPUs the workers see.
DeviceChoice choose_device(AccelerateDraft& draft, const Workers& workers,
                           const RankLayout& layout);
/// Assigns cores to the workers.
Binding choose_cores(AccelerateDraft& draft, const DeviceChoice& device, const RankLayout& layout);
/// Returns where the machines meet, as far as it follows from the workers.
RendezvousPlan meeting_point(const JobRole& role, const Workers& workers, const RankLayout& layout);
/// Adds rendezvous options and --min_machines to `meeting`.
RendezvousPlan read_rendezvous(AccelerateDraft& draft, const Workers& workers,
                               const RankLayout& layout, RendezvousPlan meeting);
/// Reads how workers are restarted and stopped. `rendezvous` tells whether acclaunch starts ranks.
SupervisionPlan read_ending(AccelerateDraft& draft, const RendezvousPlan& rendezvous);
/// True if each worker is local rank 0 with a GPU of its own.
bool read_virtual_local_rank(const AccelerateDraft& draft, const RendezvousPlan& rendezvous,
                             const DeviceChoice& device, const RankLayout& layout);
/// Reads output options.
OutputPlan read_worker_output(AccelerateDraft& draft, const RendezvousPlan& rendezvous,
                              const RankLayout& layout);
/// Reads FSDP and DeepSpeed settings and the DeepSpeed JSON file.
settings::ShardingSettings read_sharding(AccelerateDraft& draft, const Workers& workers,
                                         const RankLayout& layout);
/// Builds the command line.
std::vector<std::string> choose_command(AccelerateDraft& draft, const Workers& workers,
                                        settings::Device device,
                                        const settings::ShardingSettings& sharding);
/// Reads which modules one process imports for all workers. Throws Error(config) if acclaunch does
/// not start the workers itself.
PreloadPlan choose_preload(const AccelerateDraft& draft, const Workers& workers,
                           const std::vector<std::string>& command);
/// Compatibility mode: adds the faults at which Accelerate's launcher would stop.
void check_as_accelerate(AccelerateDraft& draft, Mode mode);
/// Chooses the number of threads.
Threads choose_threads(const AccelerateDraft& draft, const Workers& workers,
                       const RankLayout& layout, settings::Device device, const Binding& binding);
/// Returns the flag, with its value, that asks for these threads.
std::string flag_of(Threads threads);
/// Builds the workers' variables.
settings::Environment build_environment(const AccelerateDraft& draft, const Workers& workers,
                                        const DeviceChoice& device, Threads threads);
/// Plans the .deepspeed_env file, from which the deepspeed command passes variables to other
/// machines. Empty if that command is not used.
std::optional<AppendedFile> plan_deepspeed_environment(AccelerateDraft& draft,
                                                       const Workers& workers,
                                                       const WorkerVariables& variables);

/// True if the workers are to run on the CPU by request. In compatibility mode use_cpu applies to
/// one plain process only.
bool asked_for_cpu(const AccelerateDraft& draft, Mode mode);

}  // namespace acc::launcher::accelerate_cli
