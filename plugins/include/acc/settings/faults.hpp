// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"

#include <string>

namespace acc::settings {

/// Collects the faults of an input, so that the user gets all of them in one message.
class Faults {
 public:
  void add(const std::string& sentence, Errc code = Errc::config) {
    code_ = text_.empty() ? code : Errc::config;
    text_ += (text_.empty() ? "" : "\n") + sentence;
  }

  /// Runs `work` and stores the message of the Error that it throws. Returns true if it threw none.
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

  /// Throws if there was any fault: a single fault keeps its error code; several become one
  /// Error(config) with one line per fault.
  void raise() const {
    if (!text_.empty()) {
      throw Error(code_, text_);
    }
  }

 private:
  std::string text_;
  Errc code_ = Errc::config;
};

}  // namespace acc::settings
