// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "supervision/guardian.hpp"

namespace acc::launcher::remote_launch {

/// Starts acclaunch on all machines of `plan.start` and waits until all of them have ended. Prints
/// their output and passes signals on to them. If a machine cannot be started, the others are ended
/// without waiting for it. Returns the exit status that the machines agreed on, or 2 if a machine
/// could not be started. If this process or the ones above it (`Guard`) die, the machines see the
/// end of their connections and end their workers.
int start_machines(const LaunchPlan& plan, const settings::Environment& environment,
                   supervision::Guard guard);

}  // namespace acc::launcher::remote_launch
