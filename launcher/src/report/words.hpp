// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/machine_report.hpp"
#include "supervision/process_end.hpp"
#include "supervision/worker_record.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::report {

/// Returns a phrase such as "killed by SIGTERM (signal 15)", with the prefix "ended by acclaunch, "
/// if the launcher ended the worker.
std::string how_it_ended(const std::optional<supervision::ProcessEnd>& end, bool told_to_end);
std::string how_it_ended(const WorkerReport& worker);

/// Returns the phrase for a root cause, which may not have failed by itself: "exited with code 0
/// while other ranks still needed it".
std::string how_it_failed(const std::optional<supervision::ProcessEnd>& end, bool told_to_end);
std::string how_it_failed(const WorkerReport& worker);

/// Returns "rank 1 (pid 4711 on node1): " followed by `end`.
std::string worker_line(int rank, pid_t pid, const std::string& host, const std::string& end);

/// Returns the line that is printed at the moment of a failure. For a worker that is still there it
/// contains the state in which it is stuck.
std::string failure_line(const supervision::WorkerRecord& worker, const std::string& host);

/// Returns a noun with numbers: "rank 3", "ranks 0-3,7". `numbers` must be ascending.
std::string numbered(const std::string& noun, const std::vector<int>& numbers);

/// Returns the words of a command as a line for a shell.
std::string shell_line(const std::vector<std::string>& words);

/// Formats a duration: "0.8 ms", "12.34 s", "3 min 4 s", "26 h 3 min".
std::string time_span(std::chrono::microseconds time);

/// Formats a size with three digits: "63.8 MiB", "7.9 GiB".
std::string binary_size(std::int64_t bytes);

/// Returns `text` shortened to at most `max_bytes`, at a boundary between UTF-8 characters. A
/// shortened text ends with "...".
std::string clipped(std::string_view text, std::size_t max_bytes);

}  // namespace acc::launcher::report
