// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"

#include <cstddef>
#include <string>

namespace acc::settings {

/// Collects the faults of an input into one message: the first 20, with up to 2000 bytes of each,
/// because an input of another kind may have any number of them, of any length.
class Faults {
 public:
  void add(const std::string& sentence, Errc code = Errc::config) {
    constexpr int kMost = 20;
    constexpr std::size_t kMostBytes = 2000;
    code_ = count_ == 0 ? code : Errc::config;
    if (++count_ <= kMost) {
      text_ += (text_.empty() ? "" : "\n") +
               (sentence.size() <= kMostBytes ? sentence : sentence.substr(0, kMostBytes) + "...");
    } else if (count_ == kMost + 1) {
      text_ += "\nand more";
    }
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

  [[nodiscard]] bool any() const { return count_ > 0; }

  /// Throws if there was any fault: a single fault keeps its error code; several become one
  /// Error(config) with one line per fault.
  void raise() const {
    if (any()) {
      throw Error(code_, text_);
    }
  }

 private:
  std::string text_;
  int count_ = 0;
  Errc code_ = Errc::config;
};

}  // namespace acc::settings
