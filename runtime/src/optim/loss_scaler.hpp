#pragma once

#include "acc/plugins/training_settings.hpp"

#include <cstdint>
#include <map>
#include <string>

namespace acc::optim {

/// The factor on the loss with fp16, and how it moves: torch.amp.GradScaler's rule, which FSDP's
/// ShardedGradScaler has too, or DeepSpeed's DynamicLossScaler's. A static scale stays. Pure: all
/// ranks tell it the same and have the same.
class LossScaler {
 public:
  explicit LossScaler(const plugins::LossScaling& rules);

  [[nodiscard]] double scale() const noexcept { return scale_; }
  /// After a step: whether its gradients overflowed, so that it was skipped. Throws
  /// Error(collective) where DeepSpeed ends the run: an overflow at the smallest scale.
  void update(bool overflow);

  /// For checkpoints: by name, what `restore` takes. Names that another rule has left are ignored.
  [[nodiscard]] std::map<std::string, double> state() const;
  void restore(const std::map<std::string, double>& state);

 private:
  void update_grad_scaler(bool overflow);
  void update_deepspeed(bool overflow);

  plugins::LossScaling rules_;
  double scale_;
  std::int64_t clean_steps_ = 0;     ///< grad_scaler: since the scale last moved
  std::int64_t iteration_ = 0;       ///< deepspeed: steps seen
  std::int64_t last_overflow_ = -1;  ///< deepspeed: the iteration of it
  std::int64_t hysteresis_;          ///< deepspeed: overflows until the scale is halved
};

}  // namespace acc::optim
