#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace acc::rendezvous {

/// Pauses between attempts to connect: they double up to a limit, with up to a quarter of jitter,
/// so that many ranks do not come back in step.
class Backoff {
 public:
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
