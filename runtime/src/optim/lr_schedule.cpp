// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime/lr_schedule.hpp"

#include "acc/base/error.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

namespace acc {
namespace {

void check_count(const char* name, std::int64_t count, std::int64_t least) {
  if (count < least) {
    throw Error(Errc::invalid_argument, std::string("learning-rate schedule: ") + name +
                                            " must be at least " + std::to_string(least) +
                                            ", found " + std::to_string(count));
  }
}

double ratio(std::int64_t part, std::int64_t whole) {
  return static_cast<double>(part) / static_cast<double>(std::max<std::int64_t>(1, whole));
}

/// A schedule that multiplies `base` by a factor: the warmup, then `after(step)`.
template <typename After>
LrSchedule with_warmup(std::int64_t warmup_steps, const After& after) {
  check_count("warmup steps", warmup_steps, 0);
  return [=](std::int64_t step, double base) {
    return base * (step < warmup_steps ? ratio(step, warmup_steps) : after(step));
  };
}

/// DeepSpeed's warmup from 0 to 1 within `steps` steps. index: below `steps`.
double rise(WarmupType type, std::int64_t index, std::int64_t steps) {
  if (type == WarmupType::linear) {
    return static_cast<double>(index) / static_cast<double>(steps);
  }
  return 1.0 / std::log(static_cast<double>(steps)) * std::log(static_cast<double>(index + 1));
}

/// DeepSpeed raises the number of warmup steps to 2: it divides by its logarithm, which is 0 for 1.
std::int64_t checked_warmup(std::int64_t steps) {
  check_count("warmup_num_steps", steps, 1);
  return std::max<std::int64_t>(2, steps);
}

/// A schedule between `min_lr` (factor 0) and `max_lr` (factor 1). after(index): the factor after
/// the warmup. DeepSpeed's engine advances the schedule after each optimizer step, so the
/// schedule's index is step - 1; before the first step it already has the rate of index 0.
template <typename After>
LrSchedule deepspeed_warmup(const WarmupLr& settings, std::int64_t warmup, const After& after) {
  return [=](std::int64_t step, double base) {
    const std::int64_t index = std::max<std::int64_t>(0, step - 1);
    const double gamma = index < warmup ? rise(settings.type, index, warmup) : after(index);
    return settings.min_lr + (settings.max_lr.value_or(base) - settings.min_lr) * gamma;
  };
}

}  // namespace

LrSchedule constant_with_warmup(std::int64_t warmup_steps) {
  return with_warmup(warmup_steps, [](std::int64_t) { return 1.0; });
}

LrSchedule linear_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps) {
  check_count("total steps", total_steps, 0);
  return with_warmup(warmup_steps, [=](std::int64_t step) {
    return std::max(0.0, ratio(total_steps - step, total_steps - warmup_steps));
  });
}

LrSchedule cosine_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps, double cycles) {
  check_count("total steps", total_steps, 0);
  return with_warmup(warmup_steps, [=](std::int64_t step) {
    const double progress = ratio(step - warmup_steps, total_steps - warmup_steps);
    return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * cycles * 2.0 * progress)));
  });
}

LrSchedule warmup_lr(const WarmupLr& settings) {
  return deepspeed_warmup(settings, checked_warmup(settings.warmup_steps),
                          [](std::int64_t) { return 1.0; });
}

LrSchedule warmup_decay_lr(const WarmupLr& settings, std::int64_t total_steps) {
  constexpr double kMaxLr = 0.001;
  check_count("total_num_steps", total_steps, 1);
  WarmupLr known = settings;
  known.max_lr = settings.max_lr.value_or(kMaxLr);
  const std::int64_t warmup = checked_warmup(settings.warmup_steps);
  return deepspeed_warmup(known, warmup, [=](std::int64_t index) {
    return std::max(0.0, ratio(total_steps - index, total_steps - warmup));
  });
}

LrSchedule warmup_cosine_lr(const WarmupCosineLr& settings) {
  check_count("total_num_steps", settings.total_steps, 1);
  const std::int64_t warmup = checked_warmup(settings.warmup_steps);
  return [=](std::int64_t step, double base) {
    if (step == 0) {
      return 0.0;  // DeepSpeed's schedule has set no ratio before its first call
    }
    const std::int64_t index = step - 1;
    if (index < warmup) {
      const double least = settings.warmup_min_ratio;
      return base * (least + rise(settings.type, index, warmup) * (1.0 - least));
    }
    const double progress = std::min(1.0, ratio(index - warmup + 1, settings.total_steps - warmup));
    const double wave = (1.0 + std::cos(std::numbers::pi * progress)) / 2.0;
    const double least = settings.cos_min_ratio;
    return base * std::max(0.0, least + (1.0 - least) * wave);
  };
}

}  // namespace acc
