#pragma once

#include "acc/base/export.hpp"

#include <cstdint>
#include <functional>
#include <optional>

namespace acc {

/// The learning rate of a step: `step` counts the optimizer steps made so far, `base` is what the
/// optimizer, or one of its groups, was made with. A pure function of its arguments.
using LrSchedule = std::function<double(std::int64_t step, double base)>;

// --- those of transformers, by torch's LambdaLR: `base` times a factor that rises linearly from 0
// over `warmup_steps` steps. Throw Error(config) for negative counts.

/// Then 1 (get_constant_schedule_with_warmup).
ACC_API LrSchedule constant_with_warmup(std::int64_t warmup_steps);
/// Then falls linearly to 0 at `total_steps` (get_linear_schedule_with_warmup).
ACC_API LrSchedule linear_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps);
/// Then follows `cycles` waves of a cosine until `total_steps`; half a wave ends at 0
/// (get_cosine_schedule_with_warmup).
ACC_API LrSchedule cosine_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps,
                                      double cycles = 0.5);

// --- DeepSpeed's, as its engine calls them: steps 0 and 1 both have the rate that the warmup
// begins with. Throw Error(config) where DeepSpeed refuses.

/// How a warmup rises: with the logarithm of the step, or with the step.
enum class WarmupType { log, linear };

/// From `min_lr` to `max_lr`, whatever `base` is.
struct WarmupLr {
  double min_lr = 0.0;
  std::optional<double> max_lr = {};  ///< absent: `base`
  std::int64_t warmup_steps = 1000;   ///< at least 1; 1 counts as 2
  WarmupType type = WarmupType::log;
};
/// Then `max_lr` (WarmupLR).
ACC_API LrSchedule warmup_lr(const WarmupLr& settings);
/// Then falls linearly to `min_lr` at `total_steps` (WarmupDecayLR, whose `max_lr` is 0.001 where
/// absent).
ACC_API LrSchedule warmup_decay_lr(const WarmupLr& settings, std::int64_t total_steps);

/// WarmupCosineLR: `base` times a ratio that rises from `warmup_min_ratio` to 1 and then falls
/// along half a cosine to `cos_min_ratio` at `total_steps`, where it stays.
struct WarmupCosineLr {
  std::int64_t total_steps = 0;
  double warmup_min_ratio = 0.0;
  std::int64_t warmup_steps = 1000;  ///< at least 1; 1 counts as 2
  double cos_min_ratio = 0.0001;
  WarmupType type = WarmupType::log;
};
ACC_API LrSchedule warmup_cosine_lr(const WarmupCosineLr& settings);

}  // namespace acc
