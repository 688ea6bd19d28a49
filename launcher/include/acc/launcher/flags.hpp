#pragma once

#include <span>
#include <string>
#include <vector>

namespace acc::launcher {

enum class Command { launch, explain, help, version, environment_table, configuration_table };

/// The command line, taken apart but not judged: `resolve()` checks the values.
struct Flags {
  struct Value {
    std::string key;      ///< of the settings table
    std::string text;     ///< `true` for a toggle
    std::string written;  ///< as the user spelled the flag, for messages
  };

  Command command = Command::launch;
  std::vector<Value> values;  ///< in the order of the command line; the last of a key counts
  std::string program;        ///< empty: none was given
  std::vector<std::string> arguments;      ///< everything after the program
  std::vector<std::string> own_arguments;  ///< everything before it, without the sub-command

  /// The last value of `key`, or nullptr.
  [[nodiscard]] const Value* find(std::string_view key) const;
};

/// Takes apart what follows the program's own name. A long flag may be spelled with `-` or `_`, its
/// value follows `=` or a blank. Throws Error(invalid_argument) for an unknown flag, a missing
/// value, and what acclaunch does not do, by name.
Flags parse_flags(std::span<const std::string> arguments);

/// Text of --help, made from the settings table.
std::string help_text();

}  // namespace acc::launcher
