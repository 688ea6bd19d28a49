// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>

// Compiled for each kind of CPU and for GPUs. always_inline: no copy of a function remains that the
// linker could use for another kind of CPU (kernels_body.inc).
#ifdef __CUDACC__
#define ACC_ELEMENT_FUNCTION __device__ __forceinline__
#else
#define ACC_ELEMENT_FUNCTION __attribute__((always_inline)) inline
#endif

/// The arithmetic of the optimizers, one struct per rule: the coefficients of one step, and the
/// update of one element with them. CPU and GPU give the same bits.
///
/// Each struct has:
/// - kRule, the rule's name in acc/base/optimizer_rules.hpp, and kStates, the number of its
///   states. A rule whose states depend on its coefficients has one struct per number of states.
/// - kNoDecay, the value of `decay` for parameters without weight decay.
/// - of(c, step, grad_scale), which computes the coefficients of one step in double, as torch.optim
///   does, and rounds them to float once. c: the rule's coefficients by name. step: counts from 1.
/// - operator(), which returns the new weight and updates the states. grad: times grad_scale.
namespace acc::kernels {

using CoefficientValues = std::map<std::string, double, std::less<>>;

ACC_ELEMENT_FUNCTION float square_root(float value) {
#ifdef __CUDA_ARCH__
  return sqrtf(value);
#else
  return __builtin_sqrtf(value);
#endif
}

/// torch.optim.AdamW (arXiv 1711.05101, algorithm 2), rearranged so that it multiplies by constants
/// of the step: weight = weight * decay - step_size * m / (sqrt(v) / sqrt_bias_correction2 + eps).
struct AdamWStep {
  static constexpr std::string_view kRule = "adamw";
  static constexpr int kStates = 2;
  static constexpr float kNoDecay = 1.0F;

  float grad_scale;  ///< factor for each gradient (mean over ranks, clipping)
  float decay;       ///< 1 - lr * weight_decay
  float beta1_complement, beta2, beta2_complement;
  float sqrt_bias_correction2;
  float eps;
  float step_size;  ///< lr / bias_correction1

  static AdamWStep of(const CoefficientValues& c, std::int64_t step, double grad_scale) {
    const double lr = c.at("lr");
    const double beta1 = c.at("beta1");
    const double beta2 = c.at("beta2");
    const auto power = static_cast<double>(step);
    return {
        .grad_scale = static_cast<float>(grad_scale),
        .decay = static_cast<float>(1.0 - lr * c.at("weight_decay")),
        .beta1_complement = static_cast<float>(1.0 - beta1),
        .beta2 = static_cast<float>(beta2),
        .beta2_complement = static_cast<float>(1.0 - beta2),
        .sqrt_bias_correction2 = static_cast<float>(std::sqrt(1.0 - std::pow(beta2, power))),
        .eps = static_cast<float>(c.at("eps")),
        .step_size = static_cast<float>(lr / (1.0 - std::pow(beta1, power))),
    };
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float grad, float decay_here, float& exp_avg,
                                        float& exp_avg_sq) const {
    const float m = exp_avg + beta1_complement * (grad - exp_avg);
    const float v = exp_avg_sq * beta2 + beta2_complement * grad * grad;
    const float denominator = square_root(v) / sqrt_bias_correction2 + eps;
    exp_avg = m;
    exp_avg_sq = v;
    return weight * decay_here - step_size * (m / denominator);
  }
};

/// torch.optim.SGD without momentum.
struct SgdStep {
  static constexpr std::string_view kRule = "sgd";
  static constexpr int kStates = 0;
  static constexpr float kNoDecay = 0.0F;

  float grad_scale;
  float decay;  ///< weight_decay
  float lr;

  static SgdStep of(const CoefficientValues& c, std::int64_t /*step*/, double grad_scale) {
    return {.grad_scale = static_cast<float>(grad_scale),
            .decay = static_cast<float>(c.at("weight_decay")),
            .lr = static_cast<float>(c.at("lr"))};
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float scaled, float decay_here, float&,
                                        float&) const {
    return weight - lr * (scaled + decay_here * weight);
  }
};

/// torch.optim.SGD with momentum.
struct MomentumStep {
  static constexpr std::string_view kRule = "sgd";
  static constexpr int kStates = 1;
  static constexpr float kNoDecay = 0.0F;

  float grad_scale;
  float decay;  ///< weight_decay
  float lr;
  float kept;           ///< of the velocity; 0 in the first step, as in torch
  float direct, ahead;  ///< factors of gradient and velocity; with nesterov: 1 and the momentum

  static MomentumStep of(const CoefficientValues& c, std::int64_t step, double grad_scale) {
    const auto momentum = static_cast<float>(c.at("momentum"));
    const bool nesterov = c.at("nesterov") != 0.0;
    return {.grad_scale = static_cast<float>(grad_scale),
            .decay = static_cast<float>(c.at("weight_decay")),
            .lr = static_cast<float>(c.at("lr")),
            .kept = step == 1 ? 0.0F : momentum,
            .direct = nesterov ? 1.0F : 0.0F,
            .ahead = nesterov ? momentum : 1.0F};
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float scaled, float decay_here,
                                        float& velocity, float&) const {
    const float grad = scaled + decay_here * weight;
    velocity = kept * velocity + grad;
    return weight - lr * (direct * grad + ahead * velocity);
  }
};

/// Lion (arXiv 2302.06675, algorithm 2). The sign of 0 is 0, as in the paper; that of NaN is NaN,
/// so that a NaN in a gradient shows.
struct LionStep {
  static constexpr std::string_view kRule = "lion";
  static constexpr int kStates = 1;
  static constexpr float kNoDecay = 1.0F;

  float grad_scale;
  float decay;  ///< 1 - lr * weight_decay
  float beta1, beta1_complement, beta2, beta2_complement;
  float lr;

  static LionStep of(const CoefficientValues& c, std::int64_t /*step*/, double grad_scale) {
    return {.grad_scale = static_cast<float>(grad_scale),
            .decay = static_cast<float>(1.0 - c.at("lr") * c.at("weight_decay")),
            .beta1 = static_cast<float>(c.at("beta1")),
            .beta1_complement = static_cast<float>(1.0 - c.at("beta1")),
            .beta2 = static_cast<float>(c.at("beta2")),
            .beta2_complement = static_cast<float>(1.0 - c.at("beta2")),
            .lr = static_cast<float>(c.at("lr"))};
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float grad, float decay_here, float& exp_avg,
                                        float&) const {
    const float between = beta1 * exp_avg + beta1_complement * grad;
    const float sign = between > 0.0F ? 1.0F : between < 0.0F ? -1.0F : between;
    exp_avg = beta2 * exp_avg + beta2_complement * grad;
    return weight * decay_here - lr * sign;
  }
};

/// One step of any rule. The functions of all devices are made for these types.
using UpdateStep = std::variant<AdamWStep, SgdStep, MomentumStep, LionStep>;

}  // namespace acc::kernels
