// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands/config/questionnaire.hpp"

#include <termios.h>

#include <optional>
#include <string>

namespace acc::launcher::commands {

/// Reads one line of standard input, without its line end; empty at the end of input. Reads no byte
/// after the line, so that keys typed early reach the next menu.
std::optional<std::string> read_line();

/// True if standard input and output are a terminal that can move its cursor.
bool on_terminal();

/// Switches the terminal to single key input without echo, for the lifetime of the object. The
/// terminal is restored by the destructor, or by a handler if a signal ends the program. Only one
/// object may exist at a time.
class KeyMode {
 public:
  KeyMode();
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;
  ~KeyMode();
};

/// Shows a menu in which the user chooses with the arrow keys or a digit, and Enter. Returns the
/// value of the choice. Throws Error(invalid_argument) at the end of input.
std::string choose_with_keys(const Question& question);

}  // namespace acc::launcher::commands
