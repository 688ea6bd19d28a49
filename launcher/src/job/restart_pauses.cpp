// SPDX-License-Identifier: Apache-2.0
#include "job/restart_pauses.hpp"

#include <algorithm>

namespace acc::launcher::job {

std::chrono::milliseconds RestartPauses::next(std::chrono::milliseconds ran_for) {
  constexpr std::chrono::milliseconds kShortest = std::chrono::seconds(1);
  if (ran_for >= kHealthy) {
    pause_ = std::chrono::milliseconds(0);
  }
  const std::chrono::milliseconds pause = pause_;
  pause_ = std::min(longest_, std::max(kShortest, 2 * pause_));
  return pause;
}

}  // namespace acc::launcher::job
