// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace acc::rendezvous {

/// Exponential back-off between attempts to connect: pauses double from 10 ms to 1 s, plus up to 25
/// % of random jitter, so that many ranks do not reconnect at the same moments.
class Backoff {
 public:
  /// Returns the next pause.
  std::chrono::milliseconds next() {
    const auto pause = pause_;
    pause_ = std::min(pause_ * 2, kLongest);
    return pause + std::chrono::milliseconds(
                       std::uniform_int_distribution<std::int64_t>(0, pause.count() / 4)(random_));
  }

 private:
  static constexpr std::chrono::milliseconds kShortest{10};
  static constexpr std::chrono::milliseconds kLongest{1'000};

  std::chrono::milliseconds pause_ = kShortest;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace acc::rendezvous
