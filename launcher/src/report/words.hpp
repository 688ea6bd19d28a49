#pragma once

#include "report/machine_report.hpp"
#include "supervision/process_end.hpp"
#include "supervision/worker_record.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// "killed by SIGTERM (signal 15)", after "ended by acclaunch, " where it was.
std::string how_it_ended(const std::optional<ProcessEnd>& end, bool told_to_end);
std::string how_it_ended(const WorkerReport& worker);

/// The same of the worker that a failure is put down to, which may not have failed by itself:
/// "exited with code 0 while other ranks still needed it".
std::string how_it_failed(const std::optional<ProcessEnd>& end, bool told_to_end);
std::string how_it_failed(const WorkerReport& worker);

/// "rank 1 (pid 4711 on node1): " and how it ended.
std::string worker_line(int rank, pid_t pid, const std::string& host, const std::string& end);

/// That line for the moment of the failure, with what keeps a worker that is still there.
std::string failure_line(const WorkerRecord& worker, const std::string& host);

/// "rank 3", "ranks 0-3,7". The numbers rise.
std::string numbered(const std::string& noun, const std::vector<int>& numbers);

/// "0.8 ms", "12.34 s", "3 min 4 s", "26 h 3 min".
std::string time_span(std::chrono::microseconds time);

/// "63.8 MiB", "7.9 GiB".
std::string binary_size(std::int64_t bytes);

}  // namespace acc::launcher
