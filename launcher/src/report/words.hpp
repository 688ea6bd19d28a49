#pragma once

#include "report/job_report.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace acc::launcher {

/// "killed by SIGTERM (signal 15)", after "ended by acclaunch, " where it was.
std::string how_it_ended(const std::optional<ProcessEnd>& end, bool told_to_end);

/// Whether hosts alone would not say which machine is meant.
bool has_several_machines(const JobReport& report);

/// "rank 3", "ranks 0-3,7". The numbers rise.
std::string numbered(const std::string& noun, const std::vector<int>& numbers);

/// "0.8 ms", "12.34 s", "3 min 4 s", "26 h 3 min".
std::string time_span(std::chrono::microseconds time);

/// "63.8 MiB", "7.9 GiB".
std::string binary_size(std::int64_t bytes);

}  // namespace acc::launcher
