#pragma once

#include "acc/runtime/optimizers.hpp"
#include "kernels/kernels.hpp"

#include <cstdint>
#include <variant>

namespace acc::optim {

/// The optimizers that there are, each with its settings.
using OptimizerSettings = std::variant<AdamW, Sgd>;

/// What one step multiplies by, computed in double as torch.optim does and rounded once. `step`
/// counts from 1. `grad_scale` holds the mean over ranks and micro-steps and the clipping.
kernels::AdamWCoefficients adamw_coefficients(const AdamW& settings, std::int64_t step,
                                              double grad_scale) noexcept;
kernels::SgdCoefficients sgd_coefficients(const Sgd& settings, std::int64_t step,
                                          double grad_scale) noexcept;

/// Factor that brings a gradient of that L2 norm to `max_norm`, torch's clip_grad_norm_:
/// min(1, max_norm / (norm + 1e-6)); 1 where max_norm is 0 (no clipping). A norm that is no number
/// gives none.
double clip_coefficient(double norm, double max_norm) noexcept;

}  // namespace acc::optim
