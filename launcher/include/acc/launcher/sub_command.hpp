// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace acc::launcher {

/// Thrown by a subcommand that has printed the help that its arguments ask for.
struct HelpShown {};

/// A subcommand that starts no workers, such as `config` or `estimate-memory`.
struct SubCommand {
  std::string_view name;
  std::string_view help;  ///< one line; empty: not listed, not meant for users
  /// Runs the command with the arguments after its name, prints to stdout, and returns the exit
  /// status. Throws HelpShown, and Error for faults that the user can correct.
  int (*run)(std::span<const std::string> arguments);
};

/// Returns all subcommands in the order of --help.
std::span<const SubCommand> sub_commands() noexcept;

}  // namespace acc::launcher
