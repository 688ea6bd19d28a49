// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "supervision/guardian.hpp"

#include <chrono>

namespace acc::launcher::job {

/// Runs the plan's job on this machine and returns the exit status for the shell when all of it has
/// ended: rounds, workers, reports. Runs in the supervisor process. If the processes above it die
/// (`Guard`), it kills everything below it and exits at once. Throws Error for faults that the user
/// can correct.
/// `begun`: when the launcher began to read its settings, for the timeline.
int run_job(const LaunchPlan& plan, const settings::Environment& environment,
            supervision::Guard guard, std::chrono::steady_clock::time_point begun);

}  // namespace acc::launcher::job
