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

/// One shard as an optimizer step sees it; each [shard numel]. Weights and moments are both
/// float32, or the moments bfloat16 beside weights of 16 bits. The rules are computed in float32.
struct UpdateArrays {
  void* weights;       ///< `weight_dtype`, updated in place
  const float* grads;  ///< not changed
  void* first;         ///< exp_avg or velocity; null for SGD without momentum
  void* second;        ///< exp_avg_sq; null for SGD
  void* rounded;       ///< new weights in `rounded_dtype`, or null
  DType rounded_dtype = DType::bfloat16;
  DType weight_dtype = DType::float32;
  DType moment_dtype = DType::float32;
  /// Weights of 16 bits are rounded up or down by chance, so that their mean is what was to be
  /// rounded. Chance is a hash of `noise_key` and of the element's number, `noise_first` for
  /// element 0: the same on every device, however a flat parameter is cut.
  bool stochastic = false;
  std::uint64_t noise_key = 0;
  std::uint32_t noise_first = 0;
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

  /// torch.optim.AdamW's and SGD's rules in one pass over elements [begin, begin + numel) of the
  /// arrays. No overlap.
  void (*adamw)(const AdamWCoefficients&, const UpdateArrays&, std::size_t begin,
                std::size_t numel);
  void (*sgd)(const SgdCoefficients&, const UpdateArrays&, std::size_t begin, std::size_t numel);
};

/// The fastest variant that this CPU runs; chosen at the first call.
const Kernels& kernels() noexcept;

/// All variants that this CPU runs, fastest first.
std::span<const Kernels* const> available_kernels() noexcept;

/// Any two of float32, bfloat16 and float16, to nearest even; NaN and infinity are kept. Between
/// the two 16-bit dtypes values go through float32. The same dtype copies; no overlap else. Throws
/// Error(internal) for other dtypes.
void cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel);

/// destinations[·][i] = s0[i] op s1[i] op …, in order, in double; for a handful of values.
void reduce_doubles(ReduceOp op, std::span<const double* const> sources,
                    std::span<double* const> destinations, std::size_t numel) noexcept;

}  // namespace acc::kernels
