// SPDX-License-Identifier: Apache-2.0
#include "commands/config/questionnaire.hpp"

#include "acc/base/error.hpp"
#include "acc/settings/settings.hpp"

#include <algorithm>

namespace acc::launcher::commands {
namespace {

/// Parses the choices of a step (see Step::choices) into the question.
void add_choices(const Step& step, Question& question) {
  std::int64_t row = 0;
  for (std::string_view word : split(step.choices, '|')) {
    const bool refused = word.starts_with('~');
    word.remove_prefix(refused ? 1 : 0);
    const auto equals = word.find('=');
    const std::string_view label =
        equals == std::string_view::npos ? word : word.substr(equals + 1);
    const std::int64_t number = parse_integer(word).value_or(row++);
    (refused ? question.refused : question.choices)
        .push_back({number, std::string(word.substr(0, equals)), std::string(label)});
  }
}

const Choice* find_choice(const std::vector<Choice>& choices, std::string_view input) {
  const auto number = parse_integer(input);
  for (const Choice& choice : choices) {
    if (number ? *number == choice.number : input == choice.value || input == choice.label) {
      return &choice;
    }
  }
  return nullptr;
}

[[noreturn]] void refuse(const std::string& expected, std::string_view input) {
  throw Error(Errc::invalid_argument,
              "expected " + expected + ", got \"" + std::string(input) + "\"");
}

std::string numbers_of(const Question& question) {
  std::string text;
  for (const Choice& choice : question.choices) {
    const std::string number = std::to_string(choice.number);
    text += (text.empty() ? "" : ", ") + number +
            (choice.label == number ? "" : " (" + choice.label + ")");
  }
  return text;
}

/// Returns the value of the choice that `input` selects. Input that selects an unsupported choice
/// of Accelerate gets an error of its own.
std::string read_choice(const Question& question, std::string_view input) {
  if (const Choice* choice = find_choice(question.choices, input)) {
    return choice->value;
  }
  if (const Choice* other = find_choice(question.refused, input)) {
    throw Error(Errc::invalid_argument, "acclaunch does not support " + other->label +
                                            "; expected " + numbers_of(question));
  }
  refuse(numbers_of(question), input);
}

/// Accelerate accepts only yes and no; this also accepts the words of boolean settings.
std::string read_yes_no(std::string_view input) {
  const auto value = settings::parse_boolean(input);
  if (!value) {
    refuse("yes or no", input);
  }
  return *value ? "true" : "false";
}

std::string read_number(const Question& question, std::string_view input) {
  const auto number = parse_integer(input);
  if (!number || *number < question.minimum || *number > question.maximum) {
    refuse("an integer from " + std::to_string(question.minimum) + " to " +
               std::to_string(question.maximum),
           input);
  }
  return std::to_string(*number);
}

std::string read_real(std::string_view input) {
  const auto number = settings::parse_real(input);
  if (!number || *number < 0) {
    refuse("a number of at least 0", input);
  }
  return std::string(input);
}

}  // namespace

std::string line_of(const Choice& choice) {
  const std::string number = std::to_string(choice.number);
  return choice.label == number ? number : number + "  " + choice.label;
}

const std::string* Answers::find(std::string_view key) const {
  const auto found = std::ranges::find(
      values_, key, [](const auto& entry) -> std::string_view { return entry.first; });
  return found == values_.end() ? nullptr : &found->second;
}

bool Answers::is(std::string_view key, std::string_view value) const {
  const std::string* found = find(key);
  return found != nullptr && *found == value;
}

int Answers::number(std::string_view key, int otherwise) const {
  const std::string* found = find(key);
  return found == nullptr ? otherwise : std::stoi(*found);
}

bool holds(const Answers& answers, std::string_view condition) {
  return std::ranges::all_of(split(condition, ' '), [&](std::string_view word) {
    if (word.starts_with('!')) {
      return !answers.yes(word.substr(1));
    }
    const auto end = std::min(word.find_first_of("=!>"), word.size());
    const std::string_view key = word.substr(0, end);
    if (end == word.size()) {
      return answers.yes(key);
    }
    if (word[end] == '>') {
      return answers.number(key, 0) > parse_integer(word.substr(end + 1)).value();
    }
    const bool denies = word[end] == '!';
    const auto values = split(word.substr(end + (denies ? 2 : 1)), '|');
    const bool equals = std::ranges::any_of(values, [&](std::string_view value) {
      return key == "type" ? distributed_type(answers) == value : answers.is(key, value);
    });
    return equals != denies;
  });
}

// Stateless: the next question is the first row that applies and has no answer.
std::optional<Question> next_question(const Answers& answers) {
  for (const Step& step : questionnaire_steps()) {
    if (answers.find(step.key) == nullptr && holds(answers, step.asked)) {
      Question question{.key = std::string(step.key),
                        .text = std::string(step.text),
                        .kind = *step.kind,
                        .fallback = std::string(step.fallback),
                        .choices = {},
                        .refused = {},
                        .may_be_empty = step.may_be_empty,
                        .minimum = step.minimum,
                        .maximum = step.maximum};
      add_choices(step, question);
      complete_question(answers, question);
      return question;
    }
  }
  return std::nullopt;
}

std::string read_answer(const Question& question, std::string_view input) {
  input = trimmed(input.substr(0, input.find_last_not_of(" \t\r") + 1));
  if (input.empty()) {
    if (question.fallback.empty() && !question.may_be_empty) {
      throw Error(Errc::invalid_argument, "an answer is required: there is no default");
    }
    return question.fallback;
  }
  switch (question.kind) {
    case QuestionKind::menu: return read_choice(question, input);
    case QuestionKind::yes_no: return read_yes_no(input);
    case QuestionKind::integer: return read_number(question, input);
    case QuestionKind::real: return read_real(input);
    case QuestionKind::text: break;
  }
  return question.choices.empty() ? std::string(input) : read_choice(question, input);
}

}  // namespace acc::launcher::commands
