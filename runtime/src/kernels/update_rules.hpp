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
///   states. A rule whose states or arithmetic depend on its coefficients has several structs.
/// - fits(c): true if this struct, of those of the rule, is the one for these coefficients.
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

ACC_ELEMENT_FUNCTION float larger_of(float left, float right) {
  return left > right || left != left ? left : right;  // NaN stays NaN, as in torch.maximum
}

/// True if a coefficient that is on or off is on.
inline bool is_on(const CoefficientValues& c, std::string_view name) {
  return c.find(name)->second != 0.0;
}

/// torch.optim.AdamW (arXiv 1711.05101, algorithm 2) and Adam, rearranged so that they multiply by
/// constants of the step: weight -= step_size * m / (sqrt(v) / sqrt_bias_correction2 + eps).
/// kDecoupled: the decay multiplies the weight (AdamW), or else is added to the gradient (Adam).
/// kAmsgrad: v is its maximum so far (openreview ryQu7f-RZ).
template <bool kDecoupled, bool kAmsgrad>
struct AdamStep {
  static constexpr std::string_view kRule = kDecoupled ? "adamw" : "adam";
  static constexpr int kStates = kAmsgrad ? 3 : 2;
  static constexpr float kNoDecay = kDecoupled ? 1.0F : 0.0F;

  float grad_scale;  ///< factor for each gradient (mean over ranks, clipping)
  float decay;       ///< decoupled: 1 - lr * weight_decay; else: weight_decay
  float beta1_complement, beta2, beta2_complement;
  float sqrt_bias_correction2;
  float eps;
  float step_size;  ///< lr / bias_correction1

  static bool fits(const CoefficientValues& c) { return is_on(c, "amsgrad") == kAmsgrad; }

  static AdamStep of(const CoefficientValues& c, std::int64_t step, double grad_scale) {
    const double lr = c.at("lr");
    const double beta1 = c.at("beta1");
    const double beta2 = c.at("beta2");
    const auto power = static_cast<double>(step);
    const auto correction = [&c, power](double beta) {
      return is_on(c, "bias_correction") ? 1.0 - std::pow(beta, power) : 1.0;
    };
    const double weight_decay = c.at("weight_decay");
    return {
        .grad_scale = static_cast<float>(grad_scale),
        .decay = static_cast<float>(kDecoupled ? 1.0 - lr * weight_decay : weight_decay),
        .beta1_complement = static_cast<float>(1.0 - beta1),
        .beta2 = static_cast<float>(beta2),
        .beta2_complement = static_cast<float>(1.0 - beta2),
        .sqrt_bias_correction2 = static_cast<float>(std::sqrt(correction(beta2))),
        .eps = static_cast<float>(c.at("eps")),
        .step_size = static_cast<float>(lr / correction(beta1)),
    };
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float scaled, float decay_here,
                                        float& exp_avg, float& exp_avg_sq,
                                        float& max_exp_avg_sq) const {
    const float grad = kDecoupled ? scaled : scaled + decay_here * weight;
    const float m = exp_avg + beta1_complement * (grad - exp_avg);
    const float v = exp_avg_sq * beta2 + beta2_complement * grad * grad;
    exp_avg = m;
    exp_avg_sq = v;
    float largest = v;
    if constexpr (kAmsgrad) {
      largest = larger_of(max_exp_avg_sq, v);
      max_exp_avg_sq = largest;
    }
    const float denominator = square_root(largest) / sqrt_bias_correction2 + eps;
    return (kDecoupled ? weight * decay_here : weight) - step_size * (m / denominator);
  }
};
using AdamWStep = AdamStep<true, false>;

/// torch.optim.NAdam (Dozat, "Incorporating Nesterov Momentum into Adam"). kDecoupled: as in
/// AdamStep.
template <bool kDecoupled>
struct NAdamStep {
  static constexpr std::string_view kRule = "nadam";
  static constexpr int kStates = 2;
  static constexpr float kNoDecay = kDecoupled ? 1.0F : 0.0F;

  float grad_scale;
  float decay;  ///< as in AdamStep
  float beta1_complement, beta2, beta2_complement;
  float bias_correction2;
  float eps;
  float grad_size, momentum_size;  ///< factors of the gradient's and of the momentum's part

  static bool fits(const CoefficientValues& c) {
    return is_on(c, "decoupled_weight_decay") == kDecoupled;
  }

  /// The momentum of step number `step`.
  static double mu(const CoefficientValues& c, double step) {
    return c.at("beta1") * (1.0 - 0.5 * std::pow(0.96, step * c.at("momentum_decay")));
  }

  /// The product of the momenta of steps 1 to `step`, which torch keeps as "mu_product". Factors
  /// that no longer change 1 minus the product are left out.
  static double mu_product(const CoefficientValues& c, std::int64_t step) {
    double product = 1.0;
    for (std::int64_t i = 1; i <= step && product > 1e-20; ++i) {
      product *= mu(c, static_cast<double>(i));
    }
    return product;
  }

  static NAdamStep of(const CoefficientValues& c, std::int64_t step, double grad_scale) {
    const double lr = c.at("lr");
    const double beta2 = c.at("beta2");
    const auto number = static_cast<double>(step);
    const double weight_decay = c.at("weight_decay");
    const double here = mu(c, number);
    const double next = mu(c, number + 1.0);
    const double product = mu_product(c, step);
    return {
        .grad_scale = static_cast<float>(grad_scale),
        .decay = static_cast<float>(kDecoupled ? 1.0 - lr * weight_decay : weight_decay),
        .beta1_complement = static_cast<float>(1.0 - c.at("beta1")),
        .beta2 = static_cast<float>(beta2),
        .beta2_complement = static_cast<float>(1.0 - beta2),
        .bias_correction2 = static_cast<float>(1.0 - std::pow(beta2, number)),
        .eps = static_cast<float>(c.at("eps")),
        .grad_size = static_cast<float>(lr * (1.0 - here) / (1.0 - product)),
        .momentum_size = static_cast<float>(lr * next / (1.0 - product * next)),
    };
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float scaled, float decay_here,
                                        float& exp_avg, float& exp_avg_sq, float&) const {
    const float grad = kDecoupled ? scaled : scaled + decay_here * weight;
    const float m = exp_avg + beta1_complement * (grad - exp_avg);
    const float v = exp_avg_sq * beta2 + beta2_complement * grad * grad;
    exp_avg = m;
    exp_avg_sq = v;
    const float denominator = square_root(v / bias_correction2) + eps;
    return (kDecoupled ? weight * decay_here : weight) - grad_size * (grad / denominator) -
           momentum_size * (m / denominator);
  }
};

/// torch.optim.Adagrad (jmlr.org/papers/v12/duchi11a.html); with lr_decay 0 also DeepSpeed's.
struct AdagradStep {
  static constexpr std::string_view kRule = "adagrad";
  static constexpr int kStates = 1;
  static constexpr float kNoDecay = 0.0F;

  float grad_scale;
  float decay;  ///< weight_decay
  float eps;
  float step_size;  ///< lr / (1 + (step - 1) * lr_decay)

  static bool fits(const CoefficientValues& /*c*/) { return true; }

  static AdagradStep of(const CoefficientValues& c, std::int64_t step, double grad_scale) {
    const double slowed = 1.0 + static_cast<double>(step - 1) * c.at("lr_decay");
    return {.grad_scale = static_cast<float>(grad_scale),
            .decay = static_cast<float>(c.at("weight_decay")),
            .eps = static_cast<float>(c.at("eps")),
            .step_size = static_cast<float>(c.at("lr") / slowed)};
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float scaled, float decay_here, float& sum,
                                        float&, float&) const {
    const float grad = scaled + decay_here * weight;
    sum = sum + grad * grad;
    return weight - step_size * (grad / (square_root(sum) + eps));
  }
};

/// torch.optim.RMSprop (Hinton's lecture 6e; centered: arXiv 1308.0850, equation 38). States in
/// torch's order: square_avg, then the momentum_buffer, then grad_avg.
template <bool kMomentum, bool kCentered>
struct RmspropStep {
  static constexpr std::string_view kRule = "rmsprop";
  static constexpr int kStates = 1 + (kMomentum ? 1 : 0) + (kCentered ? 1 : 0);
  static constexpr float kNoDecay = 0.0F;

  float grad_scale;
  float decay;  ///< weight_decay
  float alpha, alpha_complement;
  float eps;
  float lr;
  float momentum;

  static bool fits(const CoefficientValues& c) {
    return is_on(c, "momentum") == kMomentum && is_on(c, "centered") == kCentered;
  }

  static RmspropStep of(const CoefficientValues& c, std::int64_t /*step*/, double grad_scale) {
    return {.grad_scale = static_cast<float>(grad_scale),
            .decay = static_cast<float>(c.at("weight_decay")),
            .alpha = static_cast<float>(c.at("alpha")),
            .alpha_complement = static_cast<float>(1.0 - c.at("alpha")),
            .eps = static_cast<float>(c.at("eps")),
            .lr = static_cast<float>(c.at("lr")),
            .momentum = static_cast<float>(c.at("momentum"))};
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float scaled, float decay_here,
                                        float& square_avg, float& second, float& third) const {
    const float grad = scaled + decay_here * weight;
    const float square = alpha * square_avg + alpha_complement * grad * grad;
    square_avg = square;
    float variance = square;
    if constexpr (kCentered) {
      float& grad_avg = kMomentum ? third : second;
      const float mean = grad_avg + alpha_complement * (grad - grad_avg);
      grad_avg = mean;
      variance = square - mean * mean;
    }
    const float direction = grad / (square_root(variance) + eps);
    if constexpr (kMomentum) {
      const float velocity = momentum * second + direction;
      second = velocity;
      return weight - lr * velocity;
    } else {
      return weight - lr * direction;
    }
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

  static bool fits(const CoefficientValues& c) { return !is_on(c, "momentum"); }

  static SgdStep of(const CoefficientValues& c, std::int64_t /*step*/, double grad_scale) {
    return {.grad_scale = static_cast<float>(grad_scale),
            .decay = static_cast<float>(c.at("weight_decay")),
            .lr = static_cast<float>(c.at("lr"))};
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float scaled, float decay_here, float&,
                                        float&, float&) const {
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

  static bool fits(const CoefficientValues& c) { return is_on(c, "momentum"); }

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
                                        float& velocity, float&, float&) const {
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

  static bool fits(const CoefficientValues& /*c*/) { return true; }

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
                                        float&, float&) const {
    const float between = beta1 * exp_avg + beta1_complement * grad;
    const float sign = between > 0.0F ? 1.0F : between < 0.0F ? -1.0F : between;
    exp_avg = beta2 * exp_avg + beta2_complement * grad;
    return weight * decay_here - lr * sign;
  }
};

/// The direction of Muon before it is orthogonalized (torch.optim.Muon of torch 2.13). Returns it
/// in place of a weight.
struct MuonDirectionStep {
  static constexpr std::string_view kRule = "muon";
  static constexpr int kStates = 1;
  static constexpr float kNoDecay = 0.0F;

  float grad_scale;
  float decay = 0.0F;  ///< not used
  float momentum_complement;
  float ahead;  ///< with nesterov: momentum_complement; else: 0

  static bool fits(const CoefficientValues& /*c*/) { return true; }

  static MuonDirectionStep of(const CoefficientValues& c, std::int64_t /*step*/,
                              double grad_scale) {
    const auto complement = static_cast<float>(1.0 - c.at("momentum"));
    return {.grad_scale = static_cast<float>(grad_scale),
            .momentum_complement = complement,
            .ahead = is_on(c, "nesterov") ? complement : 0.0F};
  }

  ACC_ELEMENT_FUNCTION float operator()(float, float grad, float, float& momentum_buffer, float&,
                                        float&) const {
    const float m = momentum_buffer + momentum_complement * (grad - momentum_buffer);
    momentum_buffer = m;
    return m - ahead * (m - grad);
  }
};

/// The direction of LAMB (arXiv 1904.00962, as in DeepSpeed's FusedLamb) before it gets its length.
/// Returns it in place of the weight.
struct LambDirectionStep {
  static constexpr std::string_view kRule = "lamb";
  static constexpr int kStates = 2;
  static constexpr float kNoDecay = 0.0F;

  float grad_scale;
  float decay;  ///< weight_decay
  float beta1, beta1_complement, beta2, beta2_complement;
  float eps_inside, eps_outside;

  static bool fits(const CoefficientValues& /*c*/) { return true; }

  static LambDirectionStep of(const CoefficientValues& c, std::int64_t /*step*/,
                              double grad_scale) {
    const auto eps = static_cast<float>(c.at("eps"));
    const bool inside = is_on(c, "eps_inside_sqrt");
    return {.grad_scale = static_cast<float>(grad_scale),
            .decay = static_cast<float>(c.at("weight_decay")),
            .beta1 = static_cast<float>(c.at("beta1")),
            .beta1_complement = static_cast<float>(1.0 - c.at("beta1")),
            .beta2 = static_cast<float>(c.at("beta2")),
            .beta2_complement = static_cast<float>(1.0 - c.at("beta2")),
            .eps_inside = inside ? eps : 0.0F,
            .eps_outside = inside ? 0.0F : eps};
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float grad, float decay_here, float& exp_avg,
                                        float& exp_avg_sq, float&) const {
    const float m = beta1 * exp_avg + beta1_complement * grad;
    const float v = beta2 * exp_avg_sq + beta2_complement * grad * grad;
    exp_avg = m;
    exp_avg_sq = v;
    return m / (square_root(v + eps_inside) + eps_outside) + decay_here * weight;
  }
};

/// weight = weight * decay - size * direction: the end of a step whose direction is known.
struct DirectedStep {
  static constexpr std::string_view kRule = "muon";
  static constexpr int kStates = 0;
  static constexpr float kNoDecay = 1.0F;

  float grad_scale = 1.0F;
  float decay = 1.0F;  ///< 1 - lr * weight_decay
  float size = 0.0F;

  static bool fits(const CoefficientValues& /*c*/) { return false; }

  /// size: factor of the direction besides the learning rate.
  static DirectedStep of(const CoefficientValues& c, std::int64_t /*step*/, double size) {
    return {.grad_scale = 1.0F,
            .decay = static_cast<float>(1.0 - c.at("lr") * c.at("weight_decay")),
            .size = static_cast<float>(c.at("lr") * size)};
  }

  ACC_ELEMENT_FUNCTION float operator()(float weight, float direction, float decay_here, float&,
                                        float&, float&) const {
    return weight * decay_here - size * direction;
  }
};

/// One step of any rule. The functions of all devices are made for these types.
using UpdateStep =
    std::variant<AdamWStep, AdamStep<true, true>, AdamStep<false, false>, AdamStep<false, true>,
                 SgdStep, MomentumStep, LionStep, NAdamStep<false>, NAdamStep<true>, AdagradStep,
                 RmspropStep<false, false>, RmspropStep<true, false>, RmspropStep<false, true>,
                 RmspropStep<true, true>, MuonDirectionStep, LambDirectionStep, DirectedStep>;

}  // namespace acc::kernels
