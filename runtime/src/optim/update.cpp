#include "optim/update.hpp"

#include <cmath>

namespace acc::optim {

// torch.optim.AdamW (arXiv 1711.05101, algorithm 2), rearranged so that the kernel multiplies by
// constants of the step:
//   weight = weight * decay - step_size * m / (sqrt(v) / sqrt_bias_correction2 + eps)
kernels::AdamWCoefficients adamw_coefficients(const AdamW& settings, std::int64_t step,
                                              double grad_scale) noexcept {
  const auto power = static_cast<double>(step);
  const double bias_correction1 = 1.0 - std::pow(settings.beta1, power);
  const double bias_correction2 = 1.0 - std::pow(settings.beta2, power);
  return {
      .grad_scale = static_cast<float>(grad_scale),
      .decay = static_cast<float>(1.0 - settings.lr * settings.weight_decay),
      .beta1_complement = static_cast<float>(1.0 - settings.beta1),
      .beta2 = static_cast<float>(settings.beta2),
      .beta2_complement = static_cast<float>(1.0 - settings.beta2),
      .sqrt_bias_correction2 = static_cast<float>(std::sqrt(bias_correction2)),
      .eps = static_cast<float>(settings.eps),
      .step_size = static_cast<float>(settings.lr / bias_correction1),
  };
}

kernels::SgdCoefficients sgd_coefficients(const Sgd& settings, std::int64_t step,
                                          double grad_scale) noexcept {
  return {
      .grad_scale = static_cast<float>(grad_scale),
      .lr = static_cast<float>(settings.lr),
      .momentum = static_cast<float>(settings.momentum),
      .weight_decay = static_cast<float>(settings.weight_decay),
      .nesterov = settings.nesterov,
      .first = step == 1,  // torch initialises the velocity with the first gradient
  };
}

double clip_coefficient(double norm, double max_norm) noexcept {
  const double coefficient = max_norm > 0.0 ? max_norm / (norm + 1e-6) : 1.0;
  return coefficient > 1.0 ? 1.0 : coefficient;
}

}  // namespace acc::optim
