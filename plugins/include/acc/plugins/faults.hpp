#pragma once

#include "acc/base/error.hpp"

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

}  // namespace acc::plugins
