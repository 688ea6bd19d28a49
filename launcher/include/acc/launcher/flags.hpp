#pragma once

#include "acc/plugins/faults.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// A command line, taken apart but not judged: the plan checks the values, and raises the faults
/// together with its own.
struct Flags {
  struct Value {
    std::string key;      ///< of the face's table
    std::string text;     ///< `true` for a toggle
    std::string written;  ///< as the user spelled the flag, for messages
  };

  bool wants_help = false;     ///< --help or -h: nothing after it was read
  bool wants_version = false;  ///< --version
  std::vector<Value> values;   ///< in the order of the command line; the last of a key counts
  std::string program;         ///< empty: none was given
  bool needs_program = true;   ///< `explain` can do without
  bool one_process_a_machine = false;      ///< where nobody says how many: `doctor`
  std::vector<std::string> arguments;      ///< everything after the program
  std::vector<std::string> own_arguments;  ///< everything before it
  std::vector<std::string> typed;          ///< all of it, behind the name of the face
  plugins::Faults faults;                  ///< unknown flags, and values that are missing

  /// The last value of `key`, or nullptr.
  [[nodiscard]] const Value* find(std::string_view key) const;
};

}  // namespace acc::launcher
