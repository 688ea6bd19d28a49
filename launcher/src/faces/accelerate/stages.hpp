#pragma once

#include "acc/plugins/accelerate_config.hpp"
#include "acc/plugins/document.hpp"
#include "acc/plugins/faults.hpp"
#include "faces/accelerate/arguments.hpp"
#include "faces/accelerate/conduct.hpp"
#include "plan/draft.hpp"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// What starts the program.
enum class Starter { ranks, one_process, mpirun, deepspeed };

struct AccelerateDraft : Draft {
  AccelerateDraft(const Flags& given_flags, const plugins::Environment& parent,
                  const HostFacts& host);

  const Conduct& conduct;
  std::optional<plugins::Document> config;
  plugins::AccelerateConfig file;  ///< what `config` says besides settings
  /// As Accelerate has them, where the conduct leaves the checks of values to the program; then it
  /// is these that the workers get.
  std::optional<Arguments> arguments;
  plugins::Faults faults;
  int num_processes = 1;  ///< as asked for; the plan has those that acclaunch itself starts
  int num_machines = 1;
  Starter starter = Starter::ranks;
  std::optional<Seat> seat;      ///< started once a rank: the machine's place of this worker
  int launcher_rank = 0;         ///< then: of this launcher, which is that of its worker
  std::vector<int> local_sizes;  ///< workers by machine rank, where the job says so
  std::vector<int> worker_gpus;  ///< that they may use, as indices of the driver's devices

  /// Which mode's settings count: `fsdp`, `deepspeed` or `none`.
  [[nodiscard]] std::string origin() const;
  /// `c.yaml:3: gpu_ids`, or `--gpu_ids`.
  [[nodiscard]] std::string place(std::string_view key) const;
  [[nodiscard]] bool cpu_flag() const { return flags.find("use_cpu") != nullptr; }
};

// The stages of a plan, in their order. A stage whose answers others build on throws; they are
// then left out, and what all the rest finds is reported together.

/// File, ACC_COMPAT and flags. Keeps what is wrong in `draft.faults`.
void read_values(AccelerateDraft& draft);
/// What the manager of jobs says that started this process, or `--hostfile`: machines, ranks,
/// address and port, and whether the machines are started from here.
void take_place(AccelerateDraft& draft);
void choose_mode(AccelerateDraft& draft);
/// Machines and ranks, and what starts them.
void count_workers(AccelerateDraft& draft);
void choose_device(AccelerateDraft& draft);
void bind_workers(AccelerateDraft& draft);
void read_rendezvous(AccelerateDraft& draft);
void read_sharding(AccelerateDraft& draft);
void choose_command(AccelerateDraft& draft);
/// Where Accelerate's launcher would stop, if values are left to the program.
void check_as_accelerate(AccelerateDraft& draft);
/// Variables of the workers.
void build_environment(AccelerateDraft& draft);
/// The deepspeed command hands its other machines what this file says.
void plan_deepspeed_environment(AccelerateDraft& draft);

/// In Accelerate's own reading `use_cpu` is for one plain process.
bool asked_for_cpu(const AccelerateDraft& draft);
/// Threads of a worker; 0: leave the parent's OMP_NUM_THREADS.
int omp_threads(const AccelerateDraft& draft);
/// Whether OMP_NUM_THREADS is a share of the physical cores.
bool divides_cores(const AccelerateDraft& draft);

}  // namespace acc::launcher
