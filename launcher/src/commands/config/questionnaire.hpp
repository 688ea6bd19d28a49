#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::launcher {

enum class QuestionKind { menu, yes_no, integer, real, text };

/// An entry of a menu. Numbers count from 0 as in Accelerate's menus, so that the same keys choose
/// the same; where acclaunch does not do what an entry stands for, its number stays free. Entries
/// that are numbers are their own.
struct Choice {
  std::int64_t number;
  std::string value;  ///< that the file gets
  std::string label;
};

/// "4  multi-GPU", as menus show it; the number alone where that is all there is to say.
std::string line_of(const Choice& choice);

struct Question {
  std::string key;
  std::string text;
  QuestionKind kind = QuestionKind::yes_no;
  std::string fallback;  ///< value of the empty answer; empty: none, an answer is needed
  std::vector<Choice> choices;
  std::vector<Choice> refused;  ///< known to Accelerate alone
  bool may_be_empty = false;
  std::int64_t minimum = 0;  ///< of an integer
  std::int64_t maximum = 0;
};

/// Values given so far, in the order of the questions: `true` or `false` for yes or no, else what
/// the file will hold.
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

/// What is to be asked after `answers`: Accelerate's questions, in its order, with its defaults.
/// Nothing: all is known.
std::optional<Question> next_question(const Answers& answers);

/// The value that `input` means: of a menu a number, value or label; yes or no; empty for the
/// default. Throws Error(invalid_argument) saying what is expected.
std::string read_answer(const Question& question, std::string_view input);

/// NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED: what the answers so far amount to.
std::string distributed_type(const Answers& answers);

}  // namespace acc::launcher
