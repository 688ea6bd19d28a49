#pragma once

#include "metrics.hpp"

#include <chrono>
#include <cstdint>

namespace train_gpt {

/// The line that rank 0 shows: step, loss, tokens/s, time left. On a terminal it rewrites itself;
/// elsewhere a new line appears every few seconds, and for the first and the last step.
class Progress {
 public:
  Progress(bool shown, std::int64_t last_step);

  void show(const StepResult& result);

 private:
  [[nodiscard]] bool due(std::int64_t step) const;

  bool shown_;
  bool terminal_;
  std::int64_t last_step_;
  double smoothed_seconds_ = 0.0;  // of a step; 0: none yet
  std::chrono::steady_clock::time_point last_shown_;
};

}  // namespace train_gpt
