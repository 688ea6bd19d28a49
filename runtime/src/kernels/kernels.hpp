#pragma once

#include "acc/runtime/types.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

/// Arithmetic on contiguous arrays, for the widest vector unit that this CPU has. Pointers need no
/// alignment beyond their element's. Nothing is fused or reordered, so that every variant gives the
/// same bits, whatever the CPU and wherever an element lies. Pure functions: any thread may call.
namespace acc::kernels {

/// result[i] = (accumulate ? destinations[0][i] : 0) + scale * (((s0[i] op s1[i]) op s2[i]) op …),
/// strictly in the order of `sources`, in fp32; written to every destination. A destination may be
/// one of the sources, else arrays do not overlap. At least one source and one destination.
struct Reduction {
  std::span<const void* const> sources;  ///< each [numel] of `dtype`
  std::span<float* const> destinations;  ///< each [numel]
  std::size_t numel = 0;
  DType dtype = DType::float32;  ///< float32, bfloat16 or float16
  ReduceOp op = ReduceOp::sum;
  float scale = 1.0F;
  bool accumulate = false;
};

/// Coefficients of one AdamW step; `optim/update.hpp` derives them from the settings.
struct AdamWCoefficients {
  float grad_scale;  ///< multiplies each gradient first (mean, clipping)
  float decay;       ///< 1 - lr * weight_decay
  float beta1_complement, beta2, beta2_complement;
  float sqrt_bias_correction2;
  float eps;
  float step_size;  ///< lr / bias_correction1
};

/// Coefficients of one SGD step. `first`: the velocity starts as the gradient, as torch's does.
struct SgdCoefficients {
  float grad_scale;
  float lr, momentum, weight_decay;
  bool nesterov, first;
};

/// One variant's functions. All of a variant are compiled from kernels_body.inc.
struct Kernels {
  const char* name;

  void (*reduce)(const Reduction&);
  /// In double, in 16 interleaved partial sums.
  double (*squared_norm)(const float* values, std::size_t numel);
  void (*scale)(float* values, float factor, std::size_t numel);
  /// values[i] = factor * values[i], brought into [-limit, limit]; NaN stays NaN.
  void (*scale_clamped)(float* values, float factor, float limit, std::size_t numel);

  /// Rounds to nearest, ties to even; NaN stays NaN.
  void (*f32_to_bf16)(const float* from, std::uint16_t* to, std::size_t numel);
  void (*bf16_to_f32)(const std::uint16_t* from, float* to, std::size_t numel);
  void (*f32_to_f16)(const float* from, std::uint16_t* to, std::size_t numel);
  void (*f16_to_f32)(const std::uint16_t* from, float* to, std::size_t numel);

  /// torch.optim.AdamW's rule in one pass. weights, exp_avg, exp_avg_sq: updated in place.
  /// bf16_weights: the new weights rounded, or null. No overlap.
  void (*adamw)(const AdamWCoefficients&, float* weights, const float* grads, float* exp_avg,
                float* exp_avg_sq, std::uint16_t* bf16_weights, std::size_t numel);
  /// torch.optim.SGD's rule. velocity: null without momentum.
  void (*sgd)(const SgdCoefficients&, float* weights, const float* grads, float* velocity,
              std::uint16_t* bf16_weights, std::size_t numel);
};

/// The fastest variant that this CPU runs; chosen at the first call.
const Kernels& kernels() noexcept;

/// All variants that this CPU runs, fastest first.
std::span<const Kernels* const> available_kernels() noexcept;

/// destinations[·][i] = s0[i] op s1[i] op …, in order, in double; for a handful of values.
void reduce_doubles(ReduceOp op, std::span<const double* const> sources,
                    std::span<double* const> destinations, std::size_t numel) noexcept;

}  // namespace acc::kernels
