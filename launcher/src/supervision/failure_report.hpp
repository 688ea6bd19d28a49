#pragma once

#include "supervision/process_end.hpp"

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// One worker as the report shows it.
struct WorkerRecord {
  int rank = 0;
  int local_rank = 0;
  pid_t pid = -1;
  std::optional<ProcessEnd> end;  ///< empty: still there when it was given up
  std::chrono::system_clock::time_point ended_at;
  bool told_to_end = false;  ///< it ended after the launcher had asked for that
};

/// Everything about the failure that ended a job.
struct FailureReport {
  std::vector<std::string> command;
  std::string host;
  int attempt = 0;  ///< how often the job had been restarted
  int max_restarts = 0;
  bool restarts = false;  ///< another attempt follows
  WorkerRecord worker;
  std::chrono::milliseconds ran_for{0};
  std::string error_message;                   ///< from the worker's error file; may be empty
  std::vector<std::string> last_stderr_lines;  ///< oldest first
  std::vector<WorkerRecord> others;            ///< of this machine
};

/// One line for the moment of the failure: "rank 1 (pid 4711 on node1): killed by SIGKILL (signal
/// 9)".
std::string failure_line(const WorkerRecord& worker, const std::string& host);

/// The block that closes a failed job or attempt, for stderr.
std::string format_report(const FailureReport& report);

/// The text that a worker left in its TORCHELASTIC_ERROR_FILE: `message.message`, or `message` as
/// plain text (PyTorch 2.13, torch/distributed/elastic/multiprocessing/errors). Empty when the file
/// is not there; a remark when it cannot be understood.
std::string error_file_message(const std::string& path);

}  // namespace acc::launcher
