// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/document.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::launcher::commands {
enum class QuestionKind { menu, yes_no, integer, real, text };

/// An entry of a menu. Entries are numbered from 0 like in Accelerate's menus, so that the same
/// digits have the same meaning. Entries that acclaunch does not support keep their number, which
/// is then not in the menu. An entry that is an integer is selected by its own value.
struct Choice {
  std::int64_t number;
  std::string value;  ///< value in the file
  std::string label;
};

/// Returns the line of a menu: "4  multi-GPU", or only the number if the label is the same.
std::string line_of(const Choice& choice);

/// A question of the questionnaire.
struct Question {
  std::string key;
  std::string text;
  QuestionKind kind = QuestionKind::yes_no;
  std::string fallback;  ///< value of an empty answer; empty: an answer is required
  std::vector<Choice> choices;
  std::vector<Choice> refused;  ///< choices of Accelerate that acclaunch does not support
  bool may_be_empty = false;
  std::int64_t minimum = 0;  ///< smallest value of an integer
  std::int64_t maximum = 0;  ///< largest value of an integer
};

/// The answers so far, in the order of the questions. The value is `true` or `false` for yes or no,
/// otherwise the text for the file.
class Answers {
 public:
  void add(std::string key, std::string value) {
    values_.emplace_back(std::move(key), std::move(value));
  }
  [[nodiscard]] const std::string* find(std::string_view key) const;
  [[nodiscard]] bool is(std::string_view key, std::string_view value) const;
  [[nodiscard]] bool yes(std::string_view key) const { return is(key, "true"); }
  [[nodiscard]] int number(std::string_view key, int otherwise) const;

 private:
  std::vector<std::pair<std::string, std::string>> values_;
};

/// A row of the table of questions. Rows are asked in order; a row is skipped if `asked` is false.
struct Step {
  std::string_view key;
  std::string_view text;
  std::string_view asked = {};  ///< condition, for `holds`
  /// What is left out here is that of the setting `key`; if there is none, a question for yes or
  /// no, with the default no.
  std::string_view fallback = {};
  /// Entries of a menu, or the accepted words of a text: `VALUE` or `VALUE=label`, separated by
  /// `|`. An entry with the prefix `~` is not supported; choosing it is an error that names it.
  std::string_view choices = {};
  std::optional<QuestionKind> kind = {};
  /// Place of the answer in the file: the name of a block, or kTop for the top level. Empty if the
  /// answer is not written and only selects other questions.
  std::string_view block = {};
  bool may_be_empty = false;
  std::int64_t minimum = 1;
  std::int64_t maximum = 1'000'000;
  bool expands_home = false;  ///< `~` is replaced in the file
};

inline constexpr std::string_view kTop = "top";

/// Returns the questions of Accelerate 1.15 (accelerate/commands/config/cluster.py) in its order,
/// except those about TPU, SageMaker and Megatron-LM. Their rows are complete.
std::span<const Step> questionnaire_steps() noexcept;

/// True if a condition on answers holds: words, all of which must hold. `key`: the answer is yes;
/// `!key`: it is not. `key=A|B`: it is one of these; `key!=A`: it is not. `key>N`: it is a number
/// above N. A question that was not asked has no answer, and equals no value. The key `type` is
/// `distributed_type(answers)`.
bool holds(const Answers& answers, std::string_view condition);

/// Returns the questions whose keys are in every file of Accelerate, with their values there.
std::span<const std::pair<std::string_view, std::string_view>> default_answers() noexcept;

/// Returns the keys of fsdp_config that follow from the answers to other questions.
documents::Node derived_fsdp_keys(const Answers& answers);

/// Sets the choices, limits and defaults of a question that depend on earlier answers.
void complete_question(const Answers& answers, Question& question);

/// Returns the next question after `answers`; empty if there is none. Questions, order and defaults
/// are those of Accelerate.
std::optional<Question> next_question(const Answers& answers);

/// Converts user input to the value for the file. A menu accepts the number, value or label of an
/// entry; an empty input selects the default. Throws Error(invalid_argument) with what is expected.
std::string read_answer(const Question& question, std::string_view input);

/// Returns the distributed_type that follows from the answers so far: NO, MULTI_CPU, MULTI_GPU,
/// FSDP or DEEPSPEED.
std::string distributed_type(const Answers& answers);

/// Asks all questions on standard input and output: with menus on a terminal, else line by line. On
/// a terminal a question is repeated after an invalid answer. From a file or pipe, an invalid
/// answer is an error, and so is the end of input. Throws Error(invalid_argument).
Answers ask_all();

/// Returns the configuration file for complete answers, with every key that Accelerate's own
/// questionnaire writes. `home`: the home directory, which replaces `~`.
documents::Node config_document(const Answers& answers, const std::string& home);

/// Returns the file that `accelerate config default` writes: one process per GPU, or one on the
/// CPU.
documents::Node default_config_document(const std::string& mixed_precision, int num_gpus);

/// Returns an existing file with missing keys set to Accelerate's defaults.
documents::Node updated_config_document(const documents::Document& document);

}  // namespace acc::launcher::commands
