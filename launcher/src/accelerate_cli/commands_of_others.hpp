// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "accelerate_cli/stages.hpp"
#include "plan/program_command.hpp"

#include <string>
#include <vector>

/// Command lines of the programs that start workers in place of acclaunch, with the arguments that
/// Accelerate gives them (utils/launch.py). The flags are those of these programs, although some
/// have the names of ours.
namespace acc::launcher::accelerate_cli {

/// Returns the mpirun command that starts `program` (prepare_simple_launcher_cmd_env).
std::vector<std::string> mpirun_command(const AccelerateDraft& draft, const Workers& workers,
                                        const std::vector<std::string>& program);

/// Returns the command of DeepSpeed's launcher, which starts the other machines by itself
/// (prepare_deepspeed_cmd_env).
std::vector<std::string> deepspeed_command(const AccelerateDraft& draft, const Workers& workers,
                                           plan::ProgramKind kind);

}  // namespace acc::launcher::accelerate_cli
