// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/front_end.hpp"

namespace acc::launcher::torchrun_cli {

/// FrontEnd::plan of the torchrun front end. Each value comes from the flag, else from the variable
/// PET_<FLAG>, else from the default.
LaunchPlan plan_torchrun(const Flags& flags, const plugins::Environment& environment,
                         const HostFacts& facts);

}  // namespace acc::launcher::torchrun_cli
