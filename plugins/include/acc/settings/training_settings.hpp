// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::settings {

/// Rule by which a dynamic loss scale changes: PyTorch's ShardedGradScaler or DeepSpeed's
/// DynamicLossScaler.
enum class LossScaleRule { grad_scaler, deepspeed };

/// fp16 loss scaling. The defaults are those of PyTorch.
struct LossScaling {
  LossScaleRule rule = LossScaleRule::grad_scaler;
  double static_scale = 0.0;            ///< 0: dynamic
  int initial_scale_power = 16;         ///< the initial scale is 2 to this power
  std::int64_t window = 2000;           ///< steps without overflow until the scale doubles
  int hysteresis = 1;                   ///< overflows until the scale is halved
  bool consecutive_hysteresis = false;  ///< a step without overflow restarts that count
  double min_scale = 0.0;               ///< lower bound of the scale

  bool operator==(const LossScaling&) const = default;
};

/// Reaction of an optimizer step to a gradient with NaN or infinity that dynamic loss scaling does
/// not explain.
enum class NanPolicy { ignore, skip, raise };

ACC_API std::string_view to_string(NanPolicy value) noexcept;

/// The block `optimizer` of a DeepSpeed file. An absent value means the optimizer's own default.
struct OptimizerChoice {
  /// Name of one of kOptimizerRules. An optimizer that the runtime lacks is described for a
  /// message: `LBFGS`, `Adam with maximize true`. Empty if not given.
  std::string type;
  std::optional<double> lr = {};
  std::vector<double> betas = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<double> momentum = {};
  std::string values = {};  ///< other coefficients: "amsgrad=1,bias_correction=0"

  bool operator==(const OptimizerChoice&) const = default;
};

/// The block `scheduler` of a DeepSpeed file. An absent value means the scheduler's own default.
struct ScheduleChoice {
  /// WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest. A scheduler that the runtime
  /// lacks is described for a message. Empty if not given.
  std::string type;
  std::optional<double> warmup_min_lr = {};
  std::optional<double> warmup_max_lr = {};
  std::optional<std::int64_t> warmup_num_steps = {};
  std::string warmup_type = "log";
  std::optional<std::int64_t> total_num_steps = {};
  std::optional<double> warmup_min_ratio = {};
  std::optional<double> cos_min_ratio = {};
  std::string values = {};  ///< of OneCycle and LRRangeTest: "cycle_min_lr=0.1,cycle_momentum=1"

  bool operator==(const ScheduleChoice&) const = default;
};

}  // namespace acc::settings
