// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/flight_record.hpp"
#include "supervision/process_end.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::report {

/// Exit status of a job that exceeded its time limit, or whose worker was stuck for too long. The
/// program timeout(1) uses the same value.
inline constexpr int kTimedOut = 124;

/// Facts about the end of one worker. Sent to every machine of the job, so that all of them can
/// print the same report.
struct WorkerReport {
  int rank = 0;
  int local_rank = 0;
  int machine_rank = 0;
  std::string host;
  pid_t pid = -1;
  std::optional<supervision::ProcessEnd>
      end;                   ///< empty if it could not be killed and is still there
  bool told_to_end = false;  ///< the launcher ended it after a failure or a stop signal
  bool stuck = false;        ///< it stayed in uninterruptible sleep for too long
  /// Time of its end relative to the moment in which the store announced the attempt's end to all
  /// machines (negative if before). This makes machines comparable whose clocks differ. On a single
  /// machine it is relative to the start.
  std::chrono::microseconds moment{0};
  std::chrono::system_clock::time_point ended_at;
  std::chrono::milliseconds ran_for{0};
  /// Explanation from kernel data (KernelFacts): out of memory, core dump, stuck.
  std::string cause = {};
  std::string error_message = {};                   ///< from its error file
  std::vector<std::string> traceback = {};          ///< lines, from its error file
  std::vector<std::string> last_stderr_lines = {};  ///< oldest first
  std::optional<flight::Record> flight = {};        ///< last collectives, if it uses the runtime

  /// True if it failed by itself.
  [[nodiscard]] bool failed() const { return !told_to_end && (!end || !end->ok()); }
  /// Returns the worker's own error message: that of its error file, or else that of its first
  /// failed collective. Empty if there is none.
  [[nodiscard]] const std::string& message() const;
  /// Returns the exit status of a job in which this worker is the root cause.
  [[nodiscard]] int exit_status() const;
  bool operator==(const WorkerReport&) const = default;
};

/// How the workers of one machine ended in one attempt.
struct MachineReport {
  int machine_rank = 0;
  std::string host;
  std::vector<WorkerReport> workers;  ///< by local rank
  /// Index of the root cause among these workers (root_cause.hpp). Not sent: the cause of the job
  /// may be on another machine.
  std::optional<std::size_t> root_cause = {};

  bool operator==(const MachineReport&) const = default;
};

/// Returns the index of the worker that failed first: the one with the smallest `moment` among
/// those that failed by themselves, on a tie the first. Empty if none did.
std::optional<std::size_t> first_failure(const std::vector<WorkerReport>& workers);

/// Returns the report with its texts shortened to what a person reads: 50 lines of traceback, 20
/// lines of stderr, 64 collectives.
WorkerReport bounded(WorkerReport worker);

/// Returns the report as one line of JSON for the store, of at most 8 MiB. Invalid UTF-8 is
/// replaced and long texts are shortened. If a machine has so many workers that the texts exceed 1
/// MiB, only `root_cause` keeps its texts.
std::string encode(const MachineReport& report);

/// Parses the output of `encode`. Throws Error(protocol).
MachineReport decode_machine_report(std::string_view text);

}  // namespace acc::launcher::report
