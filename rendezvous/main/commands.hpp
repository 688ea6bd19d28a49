// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// A word after `acc-rendezvous` that does something other than serving.
struct Command {
  std::string_view name;
  std::string_view usage;  ///< its arguments
  std::string_view help;
  /// Returns the exit status. Throws Error.
  int (*run)(std::span<const std::string> arguments);
};

/// Returns the commands, in the order of --help.
std::span<const Command> commands();
/// Returns the command that the first argument names, or null.
const Command* find_command(std::span<const std::string> arguments);

}  // namespace acc::rendezvous
