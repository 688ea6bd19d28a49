// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace acc::rendezvous {

/// Rate limiter for log lines that clients can cause at any rate: at most one per second.
class RateLimiter {
 public:
  /// True if a line may be logged now.
  bool operator()() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) {
      return false;
    }
    next_ = now + std::chrono::seconds(1);
    return true;
  }

 private:
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace acc::rendezvous
