#pragma once

#include "commands/config/questionnaire.hpp"

#include <span>

namespace acc::launcher {

/// A row of the questionnaire. It is asked when the rows before it have been and `asked` holds.
struct Step {
  std::string_view key;
  std::string_view text;
  QuestionKind kind = QuestionKind::yes_no;
  std::string_view fallback = {};
  /// Of a menu, or the only words of a text: `VALUE` or `VALUE=label`, joined by `|`; `~` before
  /// it: known, and refused by name.
  std::string_view choices = {};
  /// Where the file holds the answer: a block, kTop, or empty where it steers the questions alone.
  std::string_view block = {};
  bool (*asked)(const Answers&) = nullptr;  ///< null: always
  bool may_be_empty = false;
  std::int64_t minimum = 1;
  std::int64_t maximum = 1'000'000;
};

inline constexpr std::string_view kTop = "top";

/// Accelerate 1.15's questions in its order, without those of TPU, SageMaker and Megatron-LM.
std::span<const Step> questionnaire_steps() noexcept;

}  // namespace acc::launcher
