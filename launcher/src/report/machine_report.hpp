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

namespace acc::launcher {

/// The exit status of a job whose time was over, or whose worker was stuck for too long; that of
/// `timeout`.
inline constexpr int kTimedOut = 124;

/// The end of one worker, told so that every machine of the job can show it.
struct WorkerReport {
  int rank = 0;
  int local_rank = 0;
  int machine_rank = 0;
  std::string host;
  pid_t pid = -1;
  std::optional<ProcessEnd> end;  ///< empty: it could not be killed and is still there
  bool told_to_end = false;       ///< by the launcher, after the first failure or a stop signal
  bool stuck = false;             ///< it stayed in uninterruptible sleep for too long
  /// When it ended, counted from the moment in which the store told all machines of the attempt's
  /// end: one clock for all of them, whatever theirs say. On a machine alone, from the start.
  std::chrono::microseconds moment{0};
  std::chrono::system_clock::time_point ended_at;
  std::chrono::milliseconds ran_for{0};
  /// What the kernel knows about it: out of memory, where the core is, stuck.
  std::string cause = {};
  std::string error_message = {};                   ///< of its error file
  std::vector<std::string> traceback = {};          ///< of its error file, a line each
  std::vector<std::string> last_stderr_lines = {};  ///< oldest first
  std::optional<flight::Record> flight = {};        ///< its last collectives, if it has the runtime

  /// It failed by itself.
  [[nodiscard]] bool failed() const { return !told_to_end && (!end || !end->ok()); }
  /// What the worker itself says of its failure: the message of its error file, or else of its first
  /// failed collective; empty: nothing.
  [[nodiscard]] const std::string& message() const;
  /// What a job ends with that it was the first to fail in.
  [[nodiscard]] int exit_status() const;
  bool operator==(const WorkerReport&) const = default;
};

/// How the workers of one machine ended in one attempt.
struct MachineReport {
  int machine_rank = 0;
  std::string host;
  std::vector<WorkerReport> workers;  ///< by local rank

  bool operator==(const MachineReport&) const = default;
};

/// The worker that failed first: the smallest `moment` of those that failed by themselves, of equal
/// ones the first. Nothing where none did.
std::optional<std::size_t> first_failure(const std::vector<WorkerReport>& workers);

/// The report with its texts cut to what a person reads: 50 lines of traceback, 20 of stderr; 64
/// collectives.
WorkerReport bounded(WorkerReport worker);

/// One line of JSON for the store, of at most 8 MiB. Bytes that are no UTF-8 are replaced, long
/// texts are cut, and those of many workers left out except for the root cause's.
std::string encode(const MachineReport& report);

/// Throws Error(protocol) for what `encode` did not write.
MachineReport decode_machine_report(std::string_view text);

}  // namespace acc::launcher
