// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands/config/questionnaire.hpp"

#include <span>

namespace acc::launcher::commands {

/// A row of the table of questions. Rows are asked in order; a row is skipped if `asked` is false.
struct Step {
  std::string_view key;
  std::string_view text;
  QuestionKind kind = QuestionKind::yes_no;
  std::string_view fallback = {};
  /// Entries of a menu, or the accepted words of a text: `VALUE` or `VALUE=label`, separated by
  /// `|`. An entry with the prefix `~` is not supported; choosing it is an error that names it.
  std::string_view choices = {};
  /// Place of the answer in the file: the name of a block, or kTop for the top level. Empty if the
  /// answer is not written and only selects other questions.
  std::string_view block = {};
  bool (*asked)(const Answers&) = nullptr;  ///< null: always
  bool may_be_empty = false;
  std::int64_t minimum = 1;
  std::int64_t maximum = 1'000'000;
};

inline constexpr std::string_view kTop = "top";

/// Returns the questions of Accelerate 1.15 (accelerate/commands/config/cluster.py) in its order,
/// except those about TPU, SageMaker and Megatron-LM.
std::span<const Step> questionnaire_steps() noexcept;

}  // namespace acc::launcher::commands
