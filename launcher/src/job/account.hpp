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

namespace acc::launcher {

/// What is at hand when an attempt of this machine's workers has ended.
struct AttemptEvidence {
  int attempt = 0;
  int machine_rank = 0;
  std::string host;
  std::string working_directory;
  /// When all machines learned of the end.
  std::chrono::steady_clock::time_point learned_at;
  std::chrono::steady_clock::time_point started_at;
  const LogFolder& logs;
  const OutputMux& output;
  const KernelFacts& kernel;
};

/// How the workers of this machine ended. Reads the error files and last lines of those that
/// failed, and of the root cause.
MachineReport machine_report(const AttemptOutcome& outcome, const AttemptEvidence& evidence);

/// What is known of a worker while others of its attempt may still run, as far as it is needed to
/// find the root cause of a failure. One without an end counts as told to end.
WorkerReport interim_report(const WorkerRecord& worker, const AttemptEvidence& evidence);

}  // namespace acc::launcher
