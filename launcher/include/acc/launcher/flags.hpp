#pragma once

#include "acc/plugins/faults.hpp"
#include "acc/plugins/settings_table.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// A parsed command line whose values are not checked yet. The planner checks them and reports
/// `faults` together with the errors that it finds itself.
struct Flags {
  /// One flag with its value.
  struct Value {
    std::string key;      ///< row of the front end's table
    std::string text;     ///< `true` for a toggle
    std::string written;  ///< the flag as the user spelled it, for messages
  };

  bool wants_help = false;             ///< --help or -h; nothing after it was parsed
  bool wants_version = false;          ///< --version
  std::vector<Value> values;           ///< in command-line order; the last value of a key counts
  std::string program;                 ///< empty: none was given
  bool needs_program = true;           ///< false for `explain`, which can work without a program
  bool one_process_a_machine = false;  ///< default of one worker per machine, for `doctor`
  std::vector<std::string> arguments;  ///< arguments after the program
  std::vector<std::string> own_arguments;  ///< arguments before the program
  std::vector<std::string> typed;          ///< all arguments, after the front end's name
  plugins::Faults faults;                  ///< unknown flags and missing values

  /// Returns the last value of `key`, or nullptr.
  [[nodiscard]] const Value* find(plugins::SettingKey key) const;
};

}  // namespace acc::launcher
