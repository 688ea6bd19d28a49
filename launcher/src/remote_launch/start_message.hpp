// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/environment.hpp"

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::remote_launch {
/// Command line, directory and environment for an acclaunch on another machine.
struct StartMessage {
  std::string working_directory;
  std::vector<std::string> arguments;           ///< front end's name first
  settings::Environment environment;            ///< added to the environment on the machine
  std::vector<settings::Environment> machines;  ///< additional variables of each machine

  bool operator==(const StartMessage&) const = default;
};

/// Encodes a message as a line `acclaunch-start 1 LENGTH` followed by LENGTH bytes of CBOR. It is
/// the first data on a launcher's standard input. Throws Error(not_supported) if it is larger than
/// 8 MiB.
std::string encode(const StartMessage& message);
/// Reads exactly one message from `fd` and leaves the following bytes unread. Throws
/// Error(connection) on a timeout or the end of the input, and Error(protocol) for other data.
StartMessage read_start_message(int fd, std::chrono::milliseconds limit);

/// Sets the message's environment, including that of `machine`, and changes to its directory.
/// Throws Error(not_found) if the directory does not exist, and Error(protocol) if the message has
/// no such machine.
void enter(const StartMessage& message, std::size_t machine);

constexpr std::string_view kRemoteCommand = "remote";

/// True if another acclaunch started this launcher.
bool was_started(const settings::Environment& environment);

/// Implements `acclaunch remote [MACHINE]`, the command that another acclaunch runs on this
/// machine. Reads the start message from standard input, changes to its directory, sets its
/// environment (that of machine MACHINE, default 0), and returns the command line to parse instead
/// of this one. Throws Error.
std::vector<std::string> become_remote(std::span<const std::string> arguments);

}  // namespace acc::launcher::remote_launch
