// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/faults.hpp"
#include "acc/settings/settings_table.hpp"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Command lines by a table of settings. They follow argparse, which the original launchers use.
namespace acc::settings {

/// A flag of another program that this one recognises but does not support. A trailing `*` in `key`
/// matches any rest.
struct RefusedFlag {
  std::string_view key;
  std::string_view reason;
};

/// The flags of a command line. --help, -h and --version are flags of every one.
struct FlagTable {
  std::span<const SettingRow>
      table;  ///< those with a `flag`; an alias of one letter is short: `-m`
  std::span<const RefusedFlag> refused{};
  char separator = '_';       ///< between the words of a flag, in help and messages
  bool abbreviates = false;   ///< accept an unambiguous prefix of a long flag
  bool takes_program = true;  ///< the first word that is no flag is a program, with its arguments
};

/// A parsed command line whose values are not checked yet.
struct ParsedFlags {
  /// One flag with its value.
  struct Value {
    std::string key;      ///< row of the table
    std::string text;     ///< `true` for a toggle
    std::string written;  ///< the flag as the user spelled it, for messages
  };

  bool wants_help = false;                 ///< --help or -h; nothing after it was parsed
  bool wants_version = false;              ///< --version
  std::vector<Value> values;               ///< in command-line order
  std::string program;                     ///< empty: none was given
  std::vector<std::string> arguments;      ///< arguments after the program
  std::vector<std::string> own_arguments;  ///< arguments before the program
  Faults faults;                           ///< unknown flags and missing values

  /// Returns the last value of `key`, or nullptr.
  [[nodiscard]] const Value* find(SettingKey key) const;
};

/// Splits a command line into flags, program and program arguments. A long flag may be spelled with
/// `-` or `_`; its value follows `=` or is the next argument. The value of a short flag may be
/// attached to it. Does not throw: faults are collected in the result.
ParsedFlags parse_flags(const FlagTable& flags, std::span<const std::string> arguments);

/// Returns the long flag of a key in the spelling of the table: `--nproc-per-node`.
std::string as_typed(const FlagTable& flags, std::string_view key);

/// The column, from 0, in which the descriptions of flags and commands begin in --help.
inline constexpr std::size_t kHelpColumn = 44;

/// Returns the lines of one flag in --help: its spellings, VALUE, the help text, the expected value
/// in parentheses and the default in brackets. A long spelling gets a line of its own.
std::string help_entry(const FlagTable& flags, const SettingRow& row);

}  // namespace acc::settings
