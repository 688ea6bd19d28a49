#pragma once

#include "commands/config/questionnaire.hpp"

#include <termios.h>

#include <optional>
#include <string>

namespace acc::launcher {

/// One line of standard input without its end; nothing at the end of input. Reads no byte beyond
/// it, so that keys typed early reach the next menu.
std::optional<std::string> read_line();

/// Whether both ends of the conversation are a terminal that can move its cursor.
bool on_terminal();

/// While it lives, keys reach the program one by one and unechoed. The terminal is put back at the
/// end, also when a signal ends the program. One at a time.
class KeyMode {
 public:
  KeyMode();
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;
  ~KeyMode();
};

/// Lets the user choose with arrow keys, or a digit, and Enter. Returns the value. Throws
/// Error(invalid_argument) at the end of input.
std::string choose_with_keys(const Question& question);

}  // namespace acc::launcher
