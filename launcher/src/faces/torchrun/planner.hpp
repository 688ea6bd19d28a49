#pragma once

#include "acc/launcher/face.hpp"

namespace acc::launcher {

/// Face::plan of torchrun. A value is taken from the flag, else from PET_<FLAG>, else the default.
LaunchPlan plan_torchrun(const Flags& flags, const plugins::Environment& environment,
                         const HostFacts& facts);

}  // namespace acc::launcher
