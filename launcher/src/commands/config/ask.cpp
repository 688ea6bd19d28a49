// SPDX-License-Identifier: Apache-2.0
// Asks the questions: line by line, or on a terminal by menus, with raw key input by termios and
// drawing by ECMA-48 escape sequences.
#include "acc/base/error.hpp"
#include "acc/base/variables.hpp"
#include "commands/config/questionnaire.hpp"
#include "host/own_variables.hpp"

#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace acc::launcher::commands {
namespace {

constexpr std::array kEndings = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

// State for the signal handler, which can access only global variables.
termios saved_modes;
std::array<struct sigaction, kEndings.size()> saved_actions;

/// Restores the terminal and ends the process by the same signal. Only async-signal-safe calls.
extern "C" void put_terminal_back(int signal) {
  ::tcsetattr(STDIN_FILENO, TCSANOW, &saved_modes);
  constexpr std::string_view kShowCursor = "\033[?25h\n";
  [[maybe_unused]] const auto written =
      ::write(STDOUT_FILENO, kShowCursor.data(), kShowCursor.size());
  ::signal(signal, SIG_DFL);
  ::raise(signal);
}

/// Reads without a buffer, so that no input is lost between line and menu questions.
std::optional<char> read_byte() {
  char byte = 0;
  ssize_t count = 0;
  do {
    count = ::read(STDIN_FILENO, &byte, 1);
  } while (count < 0 && errno == EINTR);
  return count == 1 ? std::optional(byte) : std::nullopt;
}

enum class Key { up, down, enter, digit, other, end };
struct Stroke {
  Key key;
  int digit = 0;
};

/// Reads one key. Arrow keys are sent as ESC [ A or, in application mode, as ESC O A. Ctrl-D
/// (\004) means the end of input.
Stroke read_stroke() {
  std::optional<char> byte = read_byte();
  if (byte == '\033') {
    byte = read_byte();
    if (byte == '[' || byte == 'O') {
      byte = read_byte();
      return {byte == 'A' ? Key::up : byte == 'B' ? Key::down : Key::other};
    }
  }
  if (!byte || byte == '\004') {
    return {Key::end};
  }
  if (*byte >= '0' && *byte <= '9') {
    return {Key::digit, *byte - '0'};
  }
  return {byte == '\n' || byte == '\r' ? Key::enter : Key::other};
}

void draw(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

void draw_choices(const Question& question, std::size_t position) {
  std::string text;
  for (std::size_t row = 0; row < question.choices.size(); ++row) {
    const Choice& choice = question.choices[row];
    text += "\033[2K" + std::string(row == position ? " \033[32m> " : "   ") + line_of(choice) +
            "\033[0m\n";
  }
  draw(text);
}

void move_up(std::size_t rows) {
  draw("\033[" + std::to_string(rows) + "A");
}

std::size_t row_of_number(const Question& question, int number, std::size_t otherwise) {
  const auto found = std::ranges::find(question.choices, number, &Choice::number);
  return found == question.choices.end()
             ? otherwise
             : static_cast<std::size_t>(found - question.choices.begin());
}

/// Reads one line of standard input, without its line end; empty at the end of input. Reads no byte
/// after the line, so that keys typed early reach the next menu.
std::optional<std::string> read_line() {
  std::string line;
  std::optional<char> byte = read_byte();
  if (!byte) {
    return std::nullopt;
  }
  for (; byte && *byte != '\n'; byte = read_byte()) {
    line += *byte;
  }
  return line;
}

/// True if standard input and output are a terminal that can move its cursor.
bool on_terminal() {
  return has_cursor() && ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
}

/// Switches the terminal to single key input without echo, for the lifetime of the object. The
/// terminal is restored by the destructor, or by a handler if a signal ends the program. Only one
/// object may exist at a time.
class KeyMode {
 public:
  KeyMode() {
    ::tcgetattr(STDIN_FILENO, &saved_modes);
    struct sigaction action {};
    action.sa_handler = put_terminal_back;
    for (std::size_t i = 0; i < kEndings.size(); ++i) {
      ::sigaction(kEndings[i], &action, &saved_actions[i]);
    }
    termios modes = saved_modes;
    modes.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    modes.c_cc[VMIN] = 1;
    modes.c_cc[VTIME] = 0;
    modes.c_cc[VSUSP] = _POSIX_VDISABLE;  // Ctrl-Z would leave the terminal in this mode
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &modes);
    draw("\033[?25l");
  }
  KeyMode(const KeyMode&) = delete;
  KeyMode& operator=(const KeyMode&) = delete;
  ~KeyMode() {
    draw("\033[?25h");
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_modes);
    for (std::size_t i = 0; i < kEndings.size(); ++i) {
      ::sigaction(kEndings[i], &saved_actions[i], nullptr);
    }
  }
};

/// Shows a menu in which the user chooses with the arrow keys or a digit, and Enter. Returns the
/// value of the choice. Throws Error(invalid_argument) at the end of input.
std::string choose_with_keys(const Question& question) {
  const std::vector<Choice>& choices = question.choices;
  const auto preset = std::ranges::find(choices, question.fallback, &Choice::value);
  std::size_t position = static_cast<std::size_t>(preset - choices.begin());
  draw("\n" + question.text + "\n");
  const KeyMode mode;
  draw_choices(question, position);
  while (true) {
    const auto [key, digit] = read_stroke();
    if (key == Key::end) {
      throw Error(Errc::invalid_argument, "the input ended before all questions were answered");
    }
    if (key == Key::enter) {
      break;
    }
    if (key == Key::up && position > 0) {
      --position;
    } else if (key == Key::down && position + 1 < choices.size()) {
      ++position;
    } else if (key == Key::digit) {
      position = row_of_number(question, digit, position);
    }
    move_up(choices.size());
    draw_choices(question, position);
  }
  move_up(choices.size());
  draw("\033[J " + choices[position].label + "\n");
  return choices[position].value;
}

/// Returns the end of the prompt, which shows the default: " [yes/NO]: ", " [2]: ".
std::string preset_of(const Question& question) {
  if (question.kind == QuestionKind::yes_no) {
    return question.fallback == "true" ? " [YES/no]: " : " [yes/NO]: ";
  }
  for (const Choice& choice : question.choices) {
    if (question.kind == QuestionKind::menu && choice.value == question.fallback) {
      return " [" + std::to_string(choice.number) + "]: ";
    }
  }
  return question.fallback.empty() ? " " : " [" + question.fallback + "]: ";
}

std::string prompt_of(const Question& question) {
  std::string text = question.text;
  if (question.kind == QuestionKind::menu) {
    for (const Choice& choice : question.choices) {
      text += "\n  " + line_of(choice);
    }
    text += "\n ";
  }
  return text + preset_of(question);
}

std::string ask_line(const Question& question, bool terminal) {
  while (true) {
    std::fputs(prompt_of(question).c_str(), stdout);
    std::fflush(stdout);
    const auto line = read_line();
    if (!line) {
      throw Error(Errc::invalid_argument,
                  "the input ended before this question was answered: " + question.text);
    }
    try {
      const std::string value = read_answer(question, *line);
      std::fputs(terminal ? "" : "\n", stdout);
      return value;
    } catch (const Error& mistake) {
      if (!terminal) {
        throw Error(mistake.code(), question.text + " " + mistake.what());
      }
      std::printf("%s\n", mistake.what());
    }
  }
}

}  // namespace

Answers ask_all() {
  const bool terminal = on_terminal();
  Answers answers;
  while (const auto question = next_question(answers)) {
    const bool menu = terminal && question->kind == QuestionKind::menu;
    // A pipe still gets the question, so that input made for Accelerate's questionnaire works.
    const bool one_choice = menu && question->choices.size() == 1;
    answers.add(question->key, one_choice ? question->choices.front().value
                               : menu     ? choose_with_keys(*question)
                                          : ask_line(*question, terminal));
  }
  return answers;
}

}  // namespace acc::launcher::commands
