// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "job/log_folder.hpp"
#include "output/output_mux.hpp"
#include "report/job_report.hpp"
#include "report/kernel_facts.hpp"
#include "supervision/supervisor.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace acc::launcher::job {

/// Inputs of the reports about one attempt on this machine. The references must stay valid while
/// the struct is used.
struct AttemptEvidence {
  int attempt = 0;
  int machine_rank = 0;
  std::string host;
  std::string working_directory;
  /// Time at which this machine learned of the attempt's end. The times of the workers' deaths are
  /// given relative to it, which makes them comparable between machines.
  std::chrono::steady_clock::time_point learned_at;
  std::chrono::steady_clock::time_point started_at;  ///< start of the attempt
  const LogFolder& logs;
  const output::OutputMux& output;
  const report::KernelFacts& kernel;
};

/// Reports how the workers of this machine ended. Reads the error files and the last stderr lines
/// of the workers that failed, and of the root cause. Removes the flight records.
report::MachineReport machine_report(const supervision::AttemptOutcome& outcome,
                                     const AttemptEvidence& evidence);

/// Reports on one worker while others of its attempt may still run, with the facts that are needed
/// to find the root cause of a failure. A worker that still runs counts as told to end.
report::WorkerReport interim_report(const supervision::WorkerRecord& worker,
                                    const AttemptEvidence& evidence);

}  // namespace acc::launcher::job
