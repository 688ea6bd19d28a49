#pragma once

#include "acc/launcher/face.hpp"
#include "acc/launcher/sub_command.hpp"

#include <span>
#include <string>
#include <string_view>

namespace acc::launcher {

/// What the program was asked to do: to start workers through a face, or a sub-command.
struct CommandLine {
  const Face* face = nullptr;
  const SubCommand* sub_command = nullptr;  ///< counts where it is not null
  std::span<const std::string> arguments;   ///< that follow the words that chose it
};

/// The first argument chooses; else the name that the program was called under, such as a link
/// `torchrun`; else it is `launch`. Points into `arguments`.
CommandLine read_command_line(std::string_view called_as, std::span<const std::string> arguments);

/// `; did you mean the sub-command config?`, where the program that was not found is the first word
/// and looks like one; else nothing.
std::string sub_command_meant(const Flags& flags);

/// Names and one-line helps of the sub-commands.
std::string sub_commands_help();

}  // namespace acc::launcher
