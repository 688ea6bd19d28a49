#pragma once

#include "acc/plugins/faults.hpp"

#include <span>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// The action that the command line asks for.
enum class Action { serve, help, version, print_config, print_settings_table };

/// A parsed command line. Values are checked later, together with those of the other sources.
struct CommandLine {
  struct Value {
    std::string key;
    std::string text;
    std::string written;  ///< the flag as the user spelled it
  };

  Action action = Action::serve;
  /// In the order of the command line. The last one of a repeated flag counts; hosts add up.
  std::vector<Value> values;
  plugins::Faults faults;  ///< unknown flags, stray words, missing values
};

/// Parses a command line without the program name. Flags may be spelled with `-` or `_`; a value
/// follows after `=` or as the next argument.
CommandLine read_command_line(std::span<const std::string> arguments);

/// Returns the text of --help.
std::string help_text();

}  // namespace acc::rendezvous
