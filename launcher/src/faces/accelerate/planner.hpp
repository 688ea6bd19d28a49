#pragma once

#include "acc/launcher/face.hpp"

namespace acc::launcher {

/// Face::plan of `accelerate launch`: decides everything that it would, but for the deviations of
/// docs/compat.md. A value is taken from the flags, else the file, else (few) the environment, else
/// the default. Asks the disk only for the configuration, the program, the DeepSpeed JSON file and
/// the tools that start it (mpirun, deepspeed), and nvidia-smi where the driver's libraries say
/// nothing. Throws Error with every fault of command line and file at once (exit status 2), or with
/// that of the program alone (126, 127).
LaunchPlan plan_accelerate(const Flags& flags, const plugins::Environment& environment,
                           const HostFacts& facts);

}  // namespace acc::launcher
