#pragma once

#include <span>
#include <string>
#include <string_view>

namespace acc::launcher {

/// A sub-command that starts no workers. `run` gets what follows its name, prints to stdout, and
/// returns the exit status; it throws Error for what the user has to change.
struct SubCommand {
  std::string_view name;
  std::string_view help;  ///< one line; empty: not shown, made for our own documents
  int (*run)(std::span<const std::string> arguments);
};

/// All of them, in the order of --help.
std::span<const SubCommand> sub_commands() noexcept;

}  // namespace acc::launcher
