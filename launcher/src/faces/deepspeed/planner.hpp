#pragma once

#include "acc/launcher/face.hpp"

namespace acc::launcher {

/// Face::plan of the deepspeed front end.
LaunchPlan plan_deepspeed(const Flags& flags, const plugins::Environment& environment,
                          const HostFacts& facts);

}  // namespace acc::launcher
