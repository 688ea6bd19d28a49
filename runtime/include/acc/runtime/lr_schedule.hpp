// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace acc {

/// A function that returns the learning rate of a step. step: number of optimizer steps made so
/// far; base: learning rate with which the optimizer or the group was made. Must be a pure function
/// of its arguments, so that all ranks and resumed runs compute the same rates.
using LrSchedule = std::function<double(std::int64_t step, double base)>;

// --- Schedules of transformers (torch's LambdaLR): `base` times a factor that rises linearly from
// 0 to 1 within `warmup_steps` steps. They throw Error(invalid_argument) for negative numbers of
// steps.

/// After the warmup the factor stays 1 (get_constant_schedule_with_warmup).
ACC_API LrSchedule constant_with_warmup(std::int64_t warmup_steps);
/// After the warmup the factor falls linearly to 0 at `total_steps`
/// (get_linear_schedule_with_warmup).
ACC_API LrSchedule linear_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps);
/// After the warmup the factor follows `cycles` periods of a cosine until `total_steps`; half a
/// period ends at 0 (get_cosine_schedule_with_warmup).
ACC_API LrSchedule cosine_with_warmup(std::int64_t warmup_steps, std::int64_t total_steps,
                                      double cycles = 0.5);

// --- Schedules of DeepSpeed, as its engine calls them: steps 0 and 1 both have the rate at which
// the warmup begins. They throw Error(invalid_argument) for values that DeepSpeed refuses.

/// Shape of a warmup: rises with the logarithm of the step, or linearly with the step.
enum class WarmupType { log, linear };

/// A warmup from `min_lr` to `max_lr`. `base` is used only if `max_lr` is absent.
struct WarmupLr {
  double min_lr = 0.0;
  std::optional<double> max_lr = {};  ///< absent: `base`
  std::int64_t warmup_steps = 1000;   ///< at least 1; 1 counts as 2
  WarmupType type = WarmupType::log;
};
/// After the warmup the rate stays `max_lr` (WarmupLR).
ACC_API LrSchedule warmup_lr(const WarmupLr& settings);
/// After the warmup the rate falls linearly to `min_lr` at `total_steps` (WarmupDecayLR, where an
/// absent `max_lr` is 0.001).
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

/// A schedule by its name and its values, with which it is also known in C, Python and DeepSpeed
/// files (docs/sharding.md, "Schedules"). The functions above are short for some of them.
struct NamedSchedule {
  std::string name = {};
  std::map<std::string, double> values = {};  ///< absent: the default; booleans: 0 or 1
};

/// Returns the beta1 and beta2 of the step that follows `step` others.
using BetaSchedule = std::function<std::array<double, 2>(std::int64_t step)>;

/// What a schedule changes between steps.
struct StepSchedule {
  LrSchedule lr;
  BetaSchedule betas = {};  ///< empty: the optimizer's own; no effect on one without betas
};

/// Throws Error(invalid_argument) for an unknown name or value, a value that is missing, and for
/// numbers that transformers or DeepSpeed refuses.
ACC_API StepSchedule schedule_of(const NamedSchedule& schedule);

}  // namespace acc
