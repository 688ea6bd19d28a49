// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/flags.hpp"
#include "acc/settings/environment.hpp"

#include <array>
#include <bit>

namespace acc::launcher::accelerate_cli {

/// Compatibility policy: one switch per deviation from `accelerate launch`. The numbers are those
/// of docs/compat.md, which describes both behaviours.
struct CompatPolicy {
  bool cpu_is_a_device = true;         ///< 1: the CPU is a device, no mode; num_processes applies
  bool modes_run_without_gpus = true;  ///< 2: modes run on the CPU; num_processes defaults to 1
  bool checks_gpus = true;             ///< 3: reject missing or too few GPUs
  bool keeps_exit_status = true;       ///< 4: exit with the failed worker's status
  bool reads_hidden_keys = true;       ///< 5: read rdzv_backend, same_network, enable_cpu_affinity
  bool reads_questionnaire_strategy = true;  ///< 6: accept FSDP 1's strategy under its other key
  bool checks_inner_keys = true;      ///< 7: reject unknown keys of a block; accept old names
  bool keeps_given_port = true;       ///< 8: use the given port, or report who uses it
  bool checks_counts = true;          ///< 9: do not round num_processes or guess a machine rank
  bool shares_out_cores = true;       ///< 10: divide the cores among ranks on the CPU
  bool checks_deepspeed_file = true;  ///< 11: check the JSON file before the start
  bool checks_contradictions = true;  ///< 12: reject a file that contradicts itself
  bool starts_executables = true;     ///< 13: execute a program that is not *.py
  bool needs_no_deepspeed = true;     ///< 14: start several machines without the deepspeed command
  bool asks_manager = true;           ///< 15: read ranks from Slurm, mpirun, Kubernetes, …
  bool checks_values = true;          ///< 17: check values that Accelerate leaves to the program
};

constexpr CompatPolicy kAcclaunchPolicy{};
/// Without any deviation.
constexpr auto kAcceleratePolicy =
    std::bit_cast<CompatPolicy>(std::array<bool, sizeof(CompatPolicy)>{});

/// Returns the policy that `--compat` selects, else ACC_COMPAT. An invalid word selects the default
/// here; `read_values` reports it.
const CompatPolicy& compat_policy_of(const Flags& flags, const settings::Environment& environment);

}  // namespace acc::launcher::accelerate_cli
