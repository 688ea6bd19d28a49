#pragma once

#include "acc/launcher/launch_plan.hpp"

namespace acc::launcher {

/// Sets device, mode and sharding for front ends that have no flags for sharding: as the workers
/// will read them from the inherited environment, which the user or an outer acclaunch has set. The
/// device is ACC_DEVICE, else `cuda` if GPUs are visible. Values that the workers could not read
/// become a notice.
void inherit_settings(LaunchPlan& plan, const plugins::Environment& environment,
                      bool gpus_are_visible);

/// Removes the ACC_* settings that an outer acclaunch set for its own workers.
void remove_outer_settings(LaunchPlan& plan);

}  // namespace acc::launcher
