// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "remote_launch/start_message.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::remote_launch {

constexpr std::string_view kRemoteCommand = "remote";

/// True if another acclaunch started this launcher.
bool was_started(const plugins::Environment& environment);

/// Implements `acclaunch remote [MACHINE]`, the command that another acclaunch runs on this
/// machine. Reads the start message from standard input, changes to its directory, sets its
/// environment (that of machine MACHINE, default 0), and returns the command line to parse instead
/// of this one. Throws Error.
std::vector<std::string> become_remote(std::span<const std::string> arguments);

}  // namespace acc::launcher::remote_launch
