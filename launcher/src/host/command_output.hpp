#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// What a command writes to stdout, in this process's environment; a bare name is looked up in
/// PATH. It reads nothing and its stderr is dropped. Nothing where it cannot be started, fails, or
/// has not ended in time; then it is killed.
std::optional<std::string> command_output(
    const std::vector<std::string>& command,
    std::chrono::milliseconds limit = std::chrono::seconds(10));

}  // namespace acc::launcher
