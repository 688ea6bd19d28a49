// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "commands/config/questionnaire.hpp"
#include "commands/config/terminal.hpp"

#include <cstdio>

namespace acc::launcher::commands {
namespace {

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
