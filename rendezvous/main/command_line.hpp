#pragma once

#include "acc/plugins/faults.hpp"

#include <span>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// What the program was called for.
enum class Action { serve, help, version, print_config, print_settings_table };

/// A command line taken apart. Values are judged with those of the other sources.
struct CommandLine {
  struct Value {
    std::string key;
    std::string text;
    std::string written;  ///< the flag as the user spelled it
  };

  Action action = Action::serve;
  std::vector<Value>
      values;              ///< in the order of the command line; hosts add up, else the last counts
  plugins::Faults faults;  ///< unknown flags, stray words, missing values
};

/// Flags may be spelled with `-` or `_`; a value follows `=` or a blank.
CommandLine read_command_line(std::span<const std::string> arguments);

/// What --help prints.
std::string help_text();

}  // namespace acc::rendezvous
