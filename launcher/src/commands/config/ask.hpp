#pragma once

#include "commands/config/questionnaire.hpp"

namespace acc::launcher {

/// Asks on standard input and output until all is known: with menus on a terminal, else line by
/// line. A terminal is asked again after a wrong answer; from a file or pipe that is an error, as
/// is the end of input. Throws Error(invalid_argument).
Answers ask_all();

}  // namespace acc::launcher
