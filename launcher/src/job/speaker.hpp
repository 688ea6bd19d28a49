#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "acc/rendezvous/job.hpp"

#include <optional>
#include <string>

/// Which machine says what, where all machines print to one place (JobManager::merges_output).
/// Elsewhere each of them says everything.
namespace acc::launcher {

/// What stands before a line about this machine: "acclaunch: ", or with the host.
std::string line_head(const LaunchPlan& plan, const std::string& host);

/// What stands before a line about the job. Nothing: it is for machine 0 to say. Before there is a
/// round, that is the one which was given that rank; where none is given, everybody says it.
std::optional<std::string> job_line_head(const LaunchPlan& plan,
                                         const std::optional<rendezvous::Round>& round,
                                         const std::string& host);

/// Whether this machine prints how an attempt ended. All have the same settlement: the first one
/// that has reported prints it. Who has no word of the others prints its own.
bool prints_report(const LaunchPlan& plan, int machine_rank,
                   const rendezvous::Settlement& settlement);

}  // namespace acc::launcher
