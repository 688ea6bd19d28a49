// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/training_settings.hpp"

#include <cstdint>
#include <map>
#include <string>

namespace acc::optim {

/// Loss scale for fp16: the factor on the loss that keeps small gradients above float16's smallest
/// number. It grows after a number of steps without overflow and shrinks at an overflow, by the
/// rule of torch.amp.GradScaler (also FSDP's ShardedGradScaler) or of DeepSpeed's
/// DynamicLossScaler. A static scale never changes. No communication: all ranks report the same
/// overflows and so have the same scale.
class LossScaler {
 public:
  explicit LossScaler(const settings::LossScaling& rules);

  [[nodiscard]] double scale() const noexcept { return scale_; }
  /// Updates the scale after a step. overflow: the step was skipped because a gradient was not
  /// finite. Throws Error(collective) for an overflow at the smallest scale, with DeepSpeed's rule.
  void update(bool overflow);

  /// State for checkpoints, by name. `restore` ignores unknown names, which a checkpoint made with
  /// the other rule contains, and does nothing for a static scale.
  [[nodiscard]] std::map<std::string, double> state() const;
  void restore(const std::map<std::string, double>& state);

 private:
  void update_grad_scaler(bool overflow);
  void update_deepspeed(bool overflow);

  settings::LossScaling rules_;
  double scale_;
  std::int64_t clean_steps_ = 0;     ///< GradScaler: steps since the scale last changed
  std::int64_t iteration_ = 0;       ///< DeepSpeed: number of steps, skipped ones included
  std::int64_t last_overflow_ = -1;  ///< DeepSpeed: iteration of the last overflow; -1: none
  std::int64_t hysteresis_;          ///< DeepSpeed: overflows until the scale is halved
};

}  // namespace acc::optim
