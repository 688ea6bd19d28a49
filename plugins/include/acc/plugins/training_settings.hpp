#pragma once

#include "acc/base/export.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::plugins {

/// Who says how a loss scale moves: torch's ShardedGradScaler or DeepSpeed's DynamicLossScaler.
enum class LossScaleRule { grad_scaler, deepspeed };

/// fp16 loss scaling; defaults are those of both peers where they agree, else of torch.
struct LossScaling {
  LossScaleRule rule = LossScaleRule::grad_scaler;
  double static_scale = 0.0;     ///< 0: dynamic
  int initial_scale_power = 16;  ///< the scale begins at 2 to this power
  std::int64_t window = 2000;    ///< clean steps until it doubles
  int hysteresis = 1;            ///< overflows until it is halved
  bool consecutive_hysteresis = false;
  double min_scale = 0.0;

  bool operator==(const LossScaling&) const = default;
};

/// What a step does about a gradient that is not finite, where no loss scale explains it.
enum class NanPolicy { ignore, skip, raise };

ACC_API std::string_view to_string(NanPolicy value) noexcept;

/// `optimizer` of a DeepSpeed file; empty type: not given. Absent values: the optimizer's own.
struct OptimizerChoice {
  /// adamw, adam (decay is added to the gradient), sgd; else what the runtime has not, in words:
  /// `Lion`, `Adam with amsgrad true`.
  std::string type;
  std::optional<double> lr = {};
  std::vector<double> betas = {};
  std::optional<double> eps = {};
  std::optional<double> weight_decay = {};
  std::optional<double> momentum = {};

  bool operator==(const OptimizerChoice&) const = default;
};

/// `scheduler` of a DeepSpeed file; empty type: not given. Absent values: the type's own.
struct ScheduleChoice {
  /// WarmupLR, WarmupDecayLR, WarmupCosineLR; else what the runtime has not, in words.
  std::string type;
  std::optional<double> warmup_min_lr = {};
  std::optional<double> warmup_max_lr = {};
  std::optional<std::int64_t> warmup_num_steps = {};
  std::string warmup_type = "log";
  std::optional<std::int64_t> total_num_steps = {};
  std::optional<double> warmup_min_ratio = {};
  std::optional<double> cos_min_ratio = {};

  bool operator==(const ScheduleChoice&) const = default;
};

}  // namespace acc::plugins
