#pragma once

#include "acc/rendezvous/job.hpp"
#include "report/machine_report.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// Everything about the end of a failed job or attempt, the same on all its machines.
struct JobReport {
  std::vector<std::string> command;
  std::string run_id;
  int attempt = 0;  ///< how often the job had been restarted
  int max_restarts = 0;
  /// Until the next attempt; empty: the job is over.
  std::optional<std::chrono::milliseconds> restarts_after;
  int exit_status = 0;
  std::string reason;  ///< one line, where no worker is to blame: "machine 1 (node2) is gone: …"
  std::optional<std::size_t> first_failure;  ///< index of the root cause (root_cause.hpp)
  std::vector<WorkerReport> workers;         ///< by rank
  std::vector<std::string> silent_machines;  ///< that could not say how their workers ended
  std::string log_folder;                    ///< of the attempt; empty: nothing is kept
  std::string report_file;                   ///< where `report_json` is written; empty: nowhere

  /// Whether hosts alone would not say which machine is meant.
  [[nodiscard]] bool has_several_machines() const;
};

/// What all machines say together, each as `encode` wrote it. One that says nothing, or nothing
/// that can be read, is silent.
JobReport job_report(const std::vector<rendezvous::MachineWord>& machines);

/// The block that closes a failed job or attempt, for stderr: the first failure with all that is
/// known about it, a line for each other one, how the rest ended, and what follows. Whatever the
/// workers wrote, nothing in it moves a terminal's cursor.
std::string format_report(const JobReport& report);

/// The same for programs: docs/report.md.
std::string report_json(const JobReport& report);

}  // namespace acc::launcher
