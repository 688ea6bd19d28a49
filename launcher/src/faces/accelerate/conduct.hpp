#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/plugins/environment.hpp"

namespace acc::launcher {

/// Where acclaunch does something else than `accelerate launch`, a switch each. The numbers are
/// those of docs/compat.md, which says what either of them does.
struct Conduct {
  bool cpu_is_a_device = true;               ///< 1: and no mode; num_processes holds on the CPU too
  bool modes_run_without_gpus = true;        ///< 2: num_processes is then 1, where it is missing
  bool checks_gpus = true;                   ///< 3: that they are there, and enough
  bool keeps_exit_status = true;             ///< 4: of the worker that failed
  bool reads_hidden_keys = true;             ///< 5: rdzv_backend, same_network, enable_cpu_affinity
  bool reads_questionnaire_strategy = true;  ///< 6: of FSDP 1, stored under another key
  bool checks_inner_keys = true;             ///< 7: unknown ones are faults, old names count
  bool keeps_given_port = true;              ///< 8: or says who has it
  bool checks_counts = true;                 ///< 9: no process is rounded away, no rank guessed
  bool shares_out_cores = true;              ///< 10: among ranks on the CPU
  bool checks_deepspeed_file = true;         ///< 11: the JSON file, before the start
  bool checks_contradictions = true;         ///< 12: of the file with itself
  bool starts_executables = true;            ///< 13: a program that is no *.py is executed
  bool needs_no_deepspeed = true;            ///< 14: for several machines, unless it is asked for
  bool asks_manager = true;                  ///< 15: Slurm, mpirun, Kubernetes ...: who this is
  bool checks_values = true;                 ///< 17: that Accelerate leaves to the program
};

constexpr Conduct kAcclaunchConduct{};
constexpr Conduct kAccelerateConduct{.cpu_is_a_device = false,
                                     .modes_run_without_gpus = false,
                                     .checks_gpus = false,
                                     .keeps_exit_status = false,
                                     .reads_hidden_keys = false,
                                     .reads_questionnaire_strategy = false,
                                     .checks_inner_keys = false,
                                     .keeps_given_port = false,
                                     .checks_counts = false,
                                     .shares_out_cores = false,
                                     .checks_deepspeed_file = false,
                                     .checks_contradictions = false,
                                     .starts_executables = false,
                                     .needs_no_deepspeed = false,
                                     .asks_manager = false,
                                     .checks_values = false};

/// As `--compat` says, else ACC_COMPAT. A wrong word counts as the default here; the resolver
/// refuses it.
const Conduct& conduct_of(const Flags& flags, const plugins::Environment& environment);

}  // namespace acc::launcher
