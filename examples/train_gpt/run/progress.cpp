// SPDX-License-Identifier: Apache-2.0
#include "run/progress.hpp"

#include <unistd.h>

#include <cstdio>
#include <string>

namespace train_gpt {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kTerminalInterval{100};
constexpr std::chrono::milliseconds kLineInterval{2000};
constexpr double kSmoothing = 0.1;  // weight of the newest step in the moving average

/// Formats a time as m:ss or h:mm:ss.
std::string clock_text(double seconds) {
  const auto total = static_cast<long long>(seconds + 0.5);
  char text[32];
  if (total >= 3600) {
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", total / 3600, total / 60 % 60,
                  total % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld:%02lld", total / 60, total % 60);
  }
  return text;
}

}  // namespace

Progress::Progress(bool shown, std::int64_t last_step)
    : shown_(shown), terminal_(::isatty(STDOUT_FILENO) == 1), last_step_(last_step) {}

bool Progress::due(std::int64_t step) const {
  const auto interval = terminal_ ? kTerminalInterval : kLineInterval;
  return step == 1 || step == last_step_ || Clock::now() - last_shown_ >= interval;
}

void Progress::show(const StepResult& result) {
  // The average starts with the second step, because the first one includes warm-up costs.
  const double weight = ++steps_seen_ <= 2 ? 1.0 : kSmoothing;
  smoothed_seconds_ += weight * (result.seconds - smoothed_seconds_);
  if (!shown_ || !due(result.step)) {
    return;
  }
  last_shown_ = Clock::now();
  const bool last = result.step == last_step_;
  const double left = smoothed_seconds_ * static_cast<double>(last_step_ - result.step);
  // \r returns to the start of the terminal's line; \x1b[K clears the rest of a longer old line.
  std::printf("%sstep %lld/%lld  loss %.4f  %.0f tokens/s  ETA %s%s", terminal_ ? "\r" : "",
              static_cast<long long>(result.step), static_cast<long long>(last_step_), result.loss,
              result.tokens_per_second * result.seconds / smoothed_seconds_,
              clock_text(left).c_str(), terminal_ && !last ? "\x1b[K" : "\n");
  std::fflush(stdout);
}

}  // namespace train_gpt
