// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/front_end.hpp"
#include "acc/launcher/sub_command.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// Task of this acclaunch process: starting workers through a front end, or running a subcommand.
struct CommandLine {
  const FrontEnd* front_end = nullptr;
  const SubCommand* sub_command = nullptr;  ///< takes precedence over `front_end` if not null
  bool names_front_end = false;             ///< `acclaunch torchrun`, or a link of that name
  std::span<const std::string> arguments;   ///< the arguments after the words that selected it
};

/// Selects the front end or subcommand by the name that the program was called under, such as a
/// link `torchrun`, else by the first argument; the default is `launch`. The result points into
/// `arguments`.
CommandLine read_command_line(std::string_view called_as, std::span<const std::string> arguments);

/// Returns `; did you mean the sub-command config?` if the program that was not found is the first
/// argument and resembles a subcommand; else an empty string.
std::string sub_command_meant(const Flags& flags);

/// Rewrites `help [COMMAND]` to `[COMMAND] --help` and returns other arguments unchanged. Throws
/// Error(invalid_argument) for an unknown COMMAND.
std::vector<std::string> with_help_as_flag(std::vector<std::string> arguments);

/// Returns the text of `acclaunch --help`: the flags that most launches need, and the names of all
/// commands with a one-line help.
std::string first_help_page();

}  // namespace acc::launcher
