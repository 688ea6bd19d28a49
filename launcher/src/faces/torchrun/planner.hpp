#pragma once

#include "acc/launcher/face.hpp"

namespace acc::launcher {

/// Face::plan of the torchrun front end. Each value comes from the flag, else from the variable
/// PET_<FLAG>, else from the default.
LaunchPlan plan_torchrun(const Flags& flags, const plugins::Environment& environment,
                         const HostFacts& facts);

}  // namespace acc::launcher
