#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "supervision/guardian.hpp"

namespace acc::launcher {

/// Starts what the plan says and stays until all of it has ended: the store, the meeting with the
/// other machines, the workers, the report. Runs in the supervisor process. `guardian` is watched:
/// when it is gone, everything below this process is killed and the process exits at once.
/// Returns the exit status for the shell. Throws Error for what the user has to change.
int run_job(const LaunchPlan& plan, const plugins::Environment& environment, UniqueFd guardian);

}  // namespace acc::launcher
