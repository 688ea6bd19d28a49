#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "supervision/guardian.hpp"

namespace acc::launcher {

/// Starts acclaunch on all machines of `plan.start` and stays until all of them have ended: their
/// output comes out here, signals go there. A machine that cannot be reached ends the others before
/// they have waited for it. Returns the exit status of the job as its machines agreed on it; 2
/// where a machine could not be started. When the processes above are gone (`Guard`), or this one
/// is, the machines see the end of their connection and end their workers.
int start_machines(const LaunchPlan& plan, const plugins::Environment& environment, Guard guard);

}  // namespace acc::launcher
