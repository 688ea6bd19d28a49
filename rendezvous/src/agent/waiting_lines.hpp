// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace acc::rendezvous {

/// Tells the user what an agent waits for, and for how long it has been waiting.
class WaitingLines {
 public:
  using Clock = std::chrono::steady_clock;

  /// `say`: empty if nobody wants to know.
  explicit WaitingLines(std::function<void(const std::string&)> say)
      : print_line_(std::move(say)) {}

  /// The wait begins.
  void begin() {
    since_ = Clock::now();
    said_at_.reset();
  }
  [[nodiscard]] Clock::time_point since() const noexcept { return since_; }
  /// What it waits for has changed: the next line does not count as repeated.
  void change() { said_at_.reset(); }

  void say(const std::string& line) const {
    if (print_line_) {
      print_line_(line);
    }
  }
  /// Says "WHAT at WHERE, 12 s of 60 s". Lines that repeat have an interval.
  void say_what_is_waited_for(const std::string& what, const std::string& where,
                              const std::string& limit = "") {
    constexpr std::chrono::seconds kInterval{10};
    const auto now = Clock::now();
    if (!print_line_ || (said_at_ && now < *said_at_ + kInterval)) {
      return;
    }
    said_at_ = now;
    say(fmt::format("{} at {}, {:.0f} s{}", what, where,
                    std::chrono::duration<double>(now - since_).count(), limit));
  }

 private:
  std::function<void(const std::string&)> print_line_;
  Clock::time_point since_;
  std::optional<Clock::time_point> said_at_;
};

}  // namespace acc::rendezvous
