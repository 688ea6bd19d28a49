// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands/config/questionnaire.hpp"

namespace acc::launcher::commands {

/// Asks all questions on standard input and output: with menus on a terminal, else line by line. On
/// a terminal a question is repeated after an invalid answer. From a file or pipe, an invalid
/// answer is an error, and so is the end of input. Throws Error(invalid_argument).
Answers ask_all();

}  // namespace acc::launcher::commands
