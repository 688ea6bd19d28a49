// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/front_end.hpp"

namespace acc::launcher::deepspeed_cli {

/// FrontEnd::plan of the deepspeed front end.
LaunchPlan plan_deepspeed(const Flags& flags, const plugins::Environment& environment,
                          const HostFacts& facts);

}  // namespace acc::launcher::deepspeed_cli
