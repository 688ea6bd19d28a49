// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>

namespace acc::launcher::job {

/// Pauses before restarts (exponential backoff). The first restart is immediate. While attempts
/// fail within `kHealthy` of their start, the next restarts wait 1 s, 2 s, 4 s, … up to a maximum,
/// so that a program that always fails does not keep the machines busy.
class RestartPauses {
 public:
  static constexpr std::chrono::seconds kHealthy{60};

  explicit RestartPauses(std::chrono::seconds longest) : longest_(longest) {}

  /// Returns the pause before the next restart. `ran_for` is the time from the attempt's start to
  /// its first failure; after a healthy attempt the pauses begin again at 0.
  std::chrono::milliseconds next(std::chrono::milliseconds ran_for) {
    constexpr std::chrono::milliseconds kShortest = std::chrono::seconds(1);
    if (ran_for >= kHealthy) {
      pause_ = std::chrono::milliseconds(0);
    }
    const std::chrono::milliseconds pause = pause_;
    pause_ = std::min(longest_, std::max(kShortest, 2 * pause_));
    return pause;
  }

 private:
  std::chrono::milliseconds longest_;
  std::chrono::milliseconds pause_{0};
};

}  // namespace acc::launcher::job
