// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/front_end.hpp"

namespace acc::launcher::accelerate_cli {

/// FrontEnd::plan of `acclaunch launch`. Decides as `accelerate launch` does, except for the
/// deviations in docs/compat.md. A value comes from the flags, else the file, else for some
/// settings the environment, else the default. Reads only these files: the configuration, the
/// program, the DeepSpeed JSON file, and the tools that start the program (mpirun, deepspeed). Runs
/// nvidia-smi if the driver's libraries report no GPU. Throws Error with all faults of command line
/// and file (exit status 2), or with that of the program if it is the only one (126, 127).
LaunchPlan plan_accelerate(const Flags& flags, const plugins::Environment& environment,
                           const HostFacts& facts);

}  // namespace acc::launcher::accelerate_cli
