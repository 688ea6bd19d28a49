#pragma once

#include "acc/base/error.hpp"

#include <algorithm>
#include <cstddef>
#include <string>

namespace acc::plugins {

/// Collects what is wrong with an input, so that the user hears of all of it at once.
class Faults {
 public:
  void add(const std::string& sentence) { add(sentence, Errc::config); }

  /// Runs `work` and keeps the message of the Error that it throws. Returns whether it threw
  /// none.
  template <typename Work>
  bool collect(Work work) {
    try {
      work();
      return true;
    } catch (const Error& error) {
      add(error.what(), error.code());
      return false;
    }
  }

  [[nodiscard]] bool any() const { return !text_.empty(); }

  /// Throws if there was any fault: the only one with its own code, else Error(config) with a line
  /// for each.
  void raise() const {
    if (!text_.empty()) {
      throw Error(code_, text_);
    }
  }

 private:
  void add(const std::string& sentence, Errc code) {
    code_ = text_.empty() ? code : Errc::config;
    text_ += (text_.empty() ? "" : "\n") + sentence;
  }

  std::string text_;
  Errc code_ = Errc::config;
};

/// The text of an error for standard error: `head` before each line, a newline after it.
inline std::string with_head(const std::string& head, const std::string& text) {
  std::string result;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    result += head + text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return result;
}

}  // namespace acc::plugins
