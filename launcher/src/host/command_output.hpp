// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::spawn {
struct User;
}

namespace acc::launcher::host {

/// Runs a command, the path of a program and its arguments, in this process's environment, and
/// returns its stdout. stdin is empty and stderr is dropped. Returns empty if the command cannot be
/// started, exits with a status other than 0, or runs longer than `limit`, after which it is
/// killed. `user`: another user as whom the command runs, with no variables but PATH of this
/// process; null: this process's user.
std::optional<std::string> command_output(
    const std::vector<std::string>& command,
    std::chrono::milliseconds limit = std::chrono::seconds(10), const spawn::User* user = nullptr);

}  // namespace acc::launcher::host
