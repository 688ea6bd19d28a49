#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// What a program (looked up in PATH) writes to stdout. Nothing where it cannot be started, fails,
/// or has not ended in time; then it is killed. It reads nothing, and its stderr is dropped.
std::optional<std::string> program_output(const std::vector<std::string>& command,
                                          std::chrono::milliseconds time_limit);

}  // namespace acc::launcher
