#pragma once

#include <algorithm>
#include <chrono>

namespace acc::rendezvous {

/// When `timeout` from now is over. `milliseconds::max()` means never and must not overflow.
inline std::chrono::steady_clock::time_point after(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto now = Clock::now();
  const auto room =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::time_point::max() - now);
  return timeout < room ? now + timeout : Clock::time_point::max();
}

/// The way back: what is left until `deadline`, 0 when it is over.
inline std::chrono::milliseconds time_left(std::chrono::steady_clock::time_point deadline) {
  using Clock = std::chrono::steady_clock;
  if (deadline == Clock::time_point::max()) {
    return std::chrono::milliseconds::max();
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

}  // namespace acc::rendezvous
