#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "supervision/guardian.hpp"

namespace acc::launcher {

/// Starts what the plan says and stays until all of it has ended: its rounds, alone
/// or with other machines, their workers, the reports. Runs in the supervisor process. When the
/// processes above it are gone (`Guard`), everything below this process is killed and it exits at
/// once. Returns the exit status for the shell. Throws Error for what the user has to change.
int run_job(const LaunchPlan& plan, const plugins::Environment& environment, Guard guard);

}  // namespace acc::launcher
