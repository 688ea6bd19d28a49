// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/job.hpp"
#include "report/machine_report.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::report {

/// Facts about the end of a failed job or attempt. All machines of the job hold the same report.
struct JobReport {
  std::vector<std::string> command;
  std::string run_id;
  int attempt = 0;  ///< number of restarts before this attempt
  int max_restarts = 0;
  /// Delay until the next attempt; empty if the job is over.
  std::optional<std::chrono::milliseconds> restarts_after;
  int exit_status = 0;
  /// Set if no worker caused the failure, one line: "machine 1 (node2) is gone: …".
  std::string reason;
  std::optional<std::size_t> first_failure;  ///< index of the root cause (root_cause.hpp)
  std::vector<WorkerReport> workers;         ///< sorted by rank
  /// Lines of the stacks of this machine's workers, if they were read before they were ended.
  std::vector<std::string> stacks;
  std::vector<std::string> silent_machines;  ///< machines whose report is missing or unreadable
  std::string log_folder;                    ///< logs of the attempt; empty: none are kept
  std::string report_file;                   ///< file for `report_json`; empty: not written

  /// True if the job has more than one machine, so that the report must name machines by rank.
  [[nodiscard]] bool has_several_machines() const;
};

/// Builds the report of an attempt from its result: merges the reports of all machines, each
/// written by `encode`. A machine without a report, or with one that cannot be parsed, is added to
/// `silent_machines`. If the attempt did not end because of a worker, its reason replaces the first
/// failure; a stop request is no failure and has no reason.
JobReport job_report(const rendezvous::RoundResult& result);

/// Reads a file of stacks: at most 200 lines of at most 300 bytes.
std::vector<std::string> read_stacks(const std::string& path);

/// Returns the text block that is printed on stderr at the end of a failed job or attempt: the root
/// cause with all that is known about it, one line for each other failure, how the other workers
/// ended, and whether the job restarts. Control characters in the workers' text are escaped.
std::string format_report(const JobReport& report);

/// Returns the same report as JSON, in the format of docs/report.md.
std::string report_json(const JobReport& report);

/// Returns the part of the text report that follows the root cause: one line for each other worker
/// that failed by itself, in order of time; workers that could not be killed; how the rest ended,
/// with machines grouped whose workers ended alike; machines that sent no report. Empty if there
/// are no other workers.
std::string other_workers(const JobReport& report);

}  // namespace acc::launcher::report
