// SPDX-License-Identifier: Apache-2.0
#include "optim/loss_scaler.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"

#include <algorithm>
#include <cmath>

namespace acc::optim {

LossScaler::LossScaler(const settings::LossScaling& rules)
    : rules_(rules),
      scale_(rules.static_scale != 0.0 ? rules.static_scale
                                       : std::ldexp(1.0, rules.initial_scale_power)),
      hysteresis_(rules.hysteresis) {}

void LossScaler::update(bool overflow) {
  if (rules_.static_scale != 0.0) {
    return;
  }
  const double before = scale_;
  rules_.rule == settings::LossScaleRule::deepspeed ? update_deepspeed(overflow)
                                                    : update_grad_scaler(overflow);
  if (scale_ != before) {
    logger(Component::runtime)
        .debug("the fp16 loss scale changes from {} to {}{}", before, scale_,
               overflow ? ": the gradients overflowed" : "");
  }
}

/// torch's _amp_update_scale_: growth factor 2 after `window` clean steps, backoff factor 0.5.
void LossScaler::update_grad_scaler(bool overflow) {
  if (overflow) {
    scale_ *= 0.5;
    clean_steps_ = 0;
    return;
  }
  if (++clean_steps_ < rules_.window) {
    return;
  }
  clean_steps_ = 0;
  // torch keeps the scale in float32 and does not grow it to infinity.
  if (std::isfinite(static_cast<float>(scale_ * 2.0))) {
    scale_ *= 2.0;
  }
}

/// DynamicLossScaler.update_scale of deepspeed/runtime/fp16/loss_scaler.py. The first `hysteresis`
/// - 1 overflows are tolerated: the step is skipped, but the scale stays. The tolerance is restored
/// after a window of clean steps or, with consecutive_hysteresis, by any clean step.
void LossScaler::update_deepspeed(bool overflow) {
  if (overflow) {
    if (rules_.hysteresis == 1 || hysteresis_ == 1) {
      if (scale_ == rules_.min_scale) {
        throw Error(Errc::collective,
                    "the fp16 loss scale is at its minimum, " + std::to_string(scale_) +
                        " (fp16.min_loss_scale), and the gradients still overflow");
      }
      scale_ = std::max(scale_ / 2.0, rules_.min_scale);
    } else {
      --hysteresis_;
    }
    last_overflow_ = iteration_;
  } else {
    if (rules_.consecutive_hysteresis) {
      hysteresis_ = rules_.hysteresis;
    }
    const std::int64_t clean = iteration_ - last_overflow_ - 1;
    if (clean > 0 && clean % rules_.window == 0) {
      hysteresis_ = rules_.hysteresis;
      scale_ *= 2.0;
    }
  }
  ++iteration_;
}

std::map<std::string, double> LossScaler::state() const {
  return {{"scale", scale_},
          {"clean_steps", static_cast<double>(clean_steps_)},
          {"iteration", static_cast<double>(iteration_)},
          {"last_overflow", static_cast<double>(last_overflow_)},
          {"hysteresis", static_cast<double>(hysteresis_)}};
}

void LossScaler::restore(const std::map<std::string, double>& state) {
  if (rules_.static_scale != 0.0) {
    return;
  }
  const auto take = [&state](const char* name, auto& value) {
    if (const auto found = state.find(name); found != state.end()) {
      value = static_cast<std::remove_reference_t<decltype(value)>>(found->second);
    }
  };
  take("scale", scale_);
  take("clean_steps", clean_steps_);
  take("iteration", iteration_);
  take("last_overflow", last_overflow_);
  take("hysteresis", hysteresis_);
}

}  // namespace acc::optim
