#pragma once

#include "acc/runtime/optimizers.hpp"
#include "kernels/kernels.hpp"

#include <cstdint>
#include <variant>

namespace acc::optim {

/// Settings of an optimizer; the type selects the rule.
using OptimizerSettings = std::variant<AdamW, Sgd>;

/// Return the coefficients of one step, computed in double, as torch.optim does, and rounded to
/// float once. step: counts from 1. grad_scale: factor on the gradient (loss scale, clipping).
kernels::AdamWCoefficients adamw_coefficients(const AdamW& settings, std::int64_t step,
                                              double grad_scale) noexcept;
kernels::SgdCoefficients sgd_coefficients(const Sgd& settings, std::int64_t step,
                                          double grad_scale) noexcept;

/// Returns the factor of torch's clip_grad_norm_: min(1, max_norm / (norm + 1e-6)); 1 if max_norm
/// is 0 (no clipping). A NaN norm gives NaN.
double clip_coefficient(double norm, double max_norm) noexcept;

}  // namespace acc::optim
