// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "acc/rendezvous/job.hpp"

#include <optional>
#include <string>

/// Chooses the machine that prints a line when a job manager merges the output of all machines
/// (JobManager::merges_output). Otherwise each machine prints every line.
namespace acc::launcher::job {

/// Returns the prefix of a line about this machine: "acclaunch: ", with the host if output is
/// merged.
std::string line_head(const LaunchPlan& plan, const std::string& host);

/// Returns the prefix of a line about the whole job; empty if machine 0 prints it instead. Before
/// the first round machine 0 is the one with that configured rank; without configured ranks every
/// machine prints the line.
std::optional<std::string> job_line_head(const LaunchPlan& plan,
                                         const std::optional<rendezvous::Round>& round,
                                         const std::string& host);

/// True if this machine prints the report of an attempt. All machines have the same round result;
/// the first one in it that has reported prints. A machine whose own report is missing from the
/// result was cut off, and prints what it knows.
bool prints_report(const LaunchPlan& plan, int machine_rank,
                   const rendezvous::RoundResult& round_result);

}  // namespace acc::launcher::job
