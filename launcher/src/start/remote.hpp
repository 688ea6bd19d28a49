#pragma once

#include "start/start_message.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

constexpr std::string_view kRemoteCommand = "remote";

/// This launcher is one of those that another acclaunch has started.
bool was_started(const plugins::Environment& environment);

/// `acclaunch remote [MACHINE]`: what another acclaunch runs on this machine. Takes its message
/// from standard input, goes where that says (for MACHINE, of several), and returns the command
/// line to be read in the place of this one. Throws Error.
std::vector<std::string> become_remote(std::span<const std::string> arguments);

}  // namespace acc::launcher
