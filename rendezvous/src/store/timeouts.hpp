// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace acc::rendezvous {

/// Returns the time `timeout` from now. A timeout that would overflow, such as
/// `milliseconds::max()`, gives time_point::max(): no timeout.
inline std::chrono::steady_clock::time_point after(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto now = Clock::now();
  const auto room =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::time_point::max() - now);
  return timeout < room ? now + timeout : Clock::time_point::max();
}

/// Returns the time left until `deadline`, 0 if it has passed. The inverse of `after`.
inline std::chrono::milliseconds time_left(std::chrono::steady_clock::time_point deadline) {
  using Clock = std::chrono::steady_clock;
  if (deadline == Clock::time_point::max()) {
    return std::chrono::milliseconds::max();
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

}  // namespace acc::rendezvous
