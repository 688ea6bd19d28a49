// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "run/metrics.hpp"

#include <chrono>
#include <cstdint>

namespace train_gpt {

/// The progress line of rank 0: step, loss, tokens/s, time left. On a terminal the line is
/// rewritten. Otherwise a new line is printed every few seconds and for the first and the last
/// step.
class Progress {
 public:
  Progress(bool shown, std::int64_t last_step);

  void show(const StepResult& result);

 private:
  [[nodiscard]] bool due(std::int64_t step) const;

  bool shown_;
  bool terminal_;
  std::int64_t last_step_;
  std::int64_t steps_seen_ = 0;
  double smoothed_seconds_ = 0.0;  // moving average of the time per step
  std::chrono::steady_clock::time_point last_shown_;
};

}  // namespace train_gpt
