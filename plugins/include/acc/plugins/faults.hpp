#pragma once

#include "acc/base/error.hpp"

#include <string>

namespace acc::plugins {

/// Collects what is wrong with an input, so that the user hears of all of it at once.
class Faults {
 public:
  void add(const std::string& sentence) { text_ += (text_.empty() ? "" : "\n") + sentence; }

  /// Runs `work` and keeps the message of the Error that it throws. Returns whether it threw
  /// none.
  template <typename Work>
  bool collect(Work work) {
    try {
      work();
      return true;
    } catch (const Error& error) {
      add(error.what());
      return false;
    }
  }

  [[nodiscard]] bool any() const { return !text_.empty(); }

  /// Throws Error(config), one fault a line, if there was any.
  void raise() const {
    if (!text_.empty()) {
      throw Error(Errc::config, text_);
    }
  }

 private:
  std::string text_;
};

}  // namespace acc::plugins
