#pragma once

#include "acc/launcher/launch_plan.hpp"

namespace acc::launcher {

/// For faces without words for sharding: device, mode and sharding as the workers will read them
/// from the environment that they inherit, an outer acclaunch's or the user's. `cuda` where GPUs
/// are visible and ACC_DEVICE does not say otherwise. What they could not read becomes a notice.
void inherit_settings(LaunchPlan& plan, const plugins::Environment& environment,
                      bool gpus_are_visible);

/// Workers shall not get what an outer acclaunch told its own.
void remove_outer_settings(LaunchPlan& plan);

}  // namespace acc::launcher
