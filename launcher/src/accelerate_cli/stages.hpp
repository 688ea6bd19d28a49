#pragma once

#include "acc/plugins/accelerate_config.hpp"
#include "acc/plugins/document.hpp"
#include "acc/plugins/faults.hpp"
#include "accelerate_cli/arguments.hpp"
#include "accelerate_cli/compat_policy.hpp"
#include "plan/draft.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// How the program is started: as ranks of acclaunch, as one plain process, or by mpirun or the
/// deepspeed command.
enum class ProgramLauncher { ranks, one_process, mpirun, deepspeed };

/// Draft of a plan for `acclaunch launch`: the inputs, the settings and intermediate results.
struct AccelerateDraft : Draft {
  AccelerateDraft(const Flags& given_flags, const plugins::Environment& parent,
                  const HostFacts& host);

  const CompatPolicy& policy;
  std::optional<plugins::Document> config;
  plugins::AccelerateConfig file;  ///< facts in `config` that are no settings
  /// Arguments with Accelerate's own semantics. Set in compatibility mode, where the workers'
  /// variables are derived from these instead of the settings.
  std::optional<Arguments> arguments;
  plugins::Faults faults;
  int num_processes = 1;  ///< as requested; `plan` has the number that acclaunch itself starts
  int num_machines = 1;   ///< as requested
  ProgramLauncher program_launcher = ProgramLauncher::ranks;
  std::optional<RankSlot> rank_slot;  ///< one launcher per rank: rank slot of this launcher
  int launcher_rank = 0;              ///< one launcher per rank: rank of this launcher's worker
  std::vector<int> local_sizes;  ///< workers by machine rank, if the job or hostfile gives them
  std::vector<int> worker_gpus;  ///< GPUs that workers may use, as indices of the driver's devices

  /// Returns the name of the mode whose settings apply: `fsdp`, `deepspeed` or `none`.
  [[nodiscard]] std::string origin() const;
  /// Returns the origin of a setting for messages: `c.yaml:3: gpu_ids`, or `--gpu_ids`.
  [[nodiscard]] std::string place(plugins::SettingKey key) const;
  /// True if --cpu (or --use_cpu) is given as a flag.
  [[nodiscard]] bool cpu_flag() const { return flags.find("use_cpu"_key) != nullptr; }
};

// The stages of planning, in order. A stage throws Error for a fault. The planner then skips the
// stages that depend on it, and reports the faults of all other stages together.

/// Reads the configuration file, ACC_COMPAT and the flags. Adds faults to `draft.faults`.
void read_values(AccelerateDraft& draft);
/// Reads machines, ranks, address and port from the job manager that started this process, or from
/// `--hostfile`, and decides whether the machines are started from here.
void take_job_environment(AccelerateDraft& draft);
/// Chooses the training mode.
void choose_mode(AccelerateDraft& draft);
/// Counts machines and workers, and decides what starts them.
void count_workers(AccelerateDraft& draft);
/// Chooses CPU or GPUs, and which GPUs the workers see.
void choose_device(AccelerateDraft& draft);
/// Assigns cores to the workers.
void bind_workers(AccelerateDraft& draft);
/// Reads rendezvous, restart, shutdown and output options.
void read_rendezvous(AccelerateDraft& draft);
/// Reads FSDP and DeepSpeed settings and the DeepSpeed JSON file.
void read_sharding(AccelerateDraft& draft);
/// Builds the command line.
void choose_command(AccelerateDraft& draft);
/// Compatibility mode: adds the faults at which Accelerate's launcher would stop.
void check_as_accelerate(AccelerateDraft& draft);
/// Builds the workers' variables.
void build_environment(AccelerateDraft& draft);
/// Plans the .deepspeed_env file, from which the deepspeed command passes variables to other
/// machines.
void plan_deepspeed_environment(AccelerateDraft& draft);

/// True if the workers are to run on the CPU by request. In compatibility mode use_cpu applies to
/// one plain process only.
bool asked_for_cpu(const AccelerateDraft& draft);
/// Returns OMP_NUM_THREADS of a worker; 0: keep the parent's value.
int omp_threads(const AccelerateDraft& draft);
/// True if OMP_NUM_THREADS is computed as a share of the physical cores.
bool divides_cores(const AccelerateDraft& draft);

}  // namespace acc::launcher
