#pragma once

#include "acc/launcher/face.hpp"
#include "acc/launcher/sub_command.hpp"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// What the program was asked to do: to start workers through a face, or a sub-command.
struct CommandLine {
  const Face* face = nullptr;
  const SubCommand* sub_command = nullptr;  ///< counts where it is not null
  bool names_face = false;                  ///< `acclaunch torchrun`, or a link of that name
  std::span<const std::string> arguments;   ///< that follow the words that chose it
};

/// The first argument chooses; else the name that the program was called under, such as a link
/// `torchrun`; else it is `launch`. Points into `arguments`.
CommandLine read_command_line(std::string_view called_as, std::span<const std::string> arguments);

/// `; did you mean the sub-command config?`, where the program that was not found is the first word
/// and looks like one; else nothing.
std::string sub_command_meant(const Flags& flags);

/// `help [COMMAND]` as `[COMMAND] --help`; other arguments as they are. Throws
/// Error(invalid_argument) for a COMMAND that there is not.
std::vector<std::string> with_help_as_flag(std::vector<std::string> arguments);

/// Text of `acclaunch --help`: the flags that most launches need, and the names and one-line helps
/// of all commands.
std::string first_help_page();

}  // namespace acc::launcher
