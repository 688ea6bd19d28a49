// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/attention.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

/// GPU kernels for everything between the matrix products. T is float, __nv_bfloat16 or __half;
/// sums are fp32. All work is queued on `stream`. Results do not depend on timing. Matrices are
/// row-major and must not overlap, except where a comment says "in place". Letters in shapes: N
/// rows (batch x time), C channels (a multiple of 8, at most kMaxChannels), V vocabulary. Pointers
/// must be aligned to 16 bytes.
namespace train_gpt::cuda {

constexpr std::int64_t kMaxChannels = 8192;
constexpr std::int64_t kVectorElements = 8;

/// Mean and 1/sqrt(variance + eps) of each row.
struct RowStats {
  float* mean;  ///< (N)
  float* rstd;  ///< (N)
};

/// x[b, t] = wte[ids[b, t]] + wpe[t]. x: (N, C)
template <class T>
void embedding_forward(cudaStream_t stream, const std::int32_t* ids, const T* wte, const T* wpe,
                       T* x, std::int64_t rows, std::int64_t time, std::int64_t channels);

/// Rows of a batch grouped by token id, in device memory. Group g consists of the rows
/// rows[starts[g]] to rows[starts[g + 1] - 1], whose token is tokens[g].
struct TokenGroups {
  const std::int32_t* tokens;
  const std::int32_t* starts;
  const std::int32_t* rows;
  std::int64_t count;
};
/// Adds the gradients that follow from dx (N, C) to d_wte (V, C) and d_wpe (positions, C).
template <class T>
void embedding_backward(cudaStream_t stream, const TokenGroups& groups, const T* dx, T* d_wte,
                        T* d_wpe, std::int64_t rows, std::int64_t time, std::int64_t channels);

/// z = (x - mean) * rstd * gamma + beta for each row, with the biased variance. x, z: (N, C)
template <class T>
void layernorm_forward(cudaStream_t stream, const T* x, const T* gamma, const T* beta, float eps,
                       T* z, RowStats stats, std::int64_t rows, std::int64_t channels);
/// Returns the size of layernorm_backward's scratch, in fp32 elements.
std::int64_t layernorm_scratch(std::int64_t channels);
/// Adds the gradients that follow from dz (N, C) to dx (N, C), dgamma (C) and dbeta (C). Without
/// `accumulate`, dx is overwritten.
template <class T>
void layernorm_backward(cudaStream_t stream, const T* x, const T* gamma, RowStats stats,
                        const T* dz, T* dx, bool accumulate, T* dgamma, T* dbeta, float* scratch,
                        std::int64_t rows, std::int64_t channels);

/// losses (N) = -log softmax(logits)[target]. In place: replaces the logits (N, V) by the gradient
/// (softmax - one-hot) * scale and sets the columns from V to `stride` to zero. stride: elements
/// between the starts of two rows, a multiple of 8.
template <class T>
void cross_entropy(cudaStream_t stream, T* logits, const std::int32_t* targets, float scale,
                   float* losses, std::int64_t rows, std::int64_t vocab, std::int64_t stride);
/// *total += scale * the sum of losses (N).
void add_losses(cudaStream_t stream, const float* losses, std::int64_t rows, double scale,
                double* total);

/// h = gelu(u) in the tanh form of GPT-2. count: a multiple of 8
template <class T>
void gelu_forward(cudaStream_t stream, const T* u, T* h, std::int64_t count);
/// In place: replaces dh by du.
template <class T>
void gelu_backward(cudaStream_t stream, const T* u, T* dh_to_du, std::int64_t count);

/// Returns the size of column_sums' scratch, in fp32 elements.
std::int64_t column_sums_scratch(std::int64_t channels);
/// sums (C) = beta * sums + column sums of x (N, C). With beta 0 the old sums are not read. C may
/// exceed kMaxChannels here.
template <class T>
void column_sums(cudaStream_t stream, const T* x, T* sums, float beta, float* scratch,
                 std::int64_t rows, std::int64_t channels);
/// In place: adds bias (C) to each row of x (N, C). C: a multiple of 8, may exceed kMaxChannels.
template <class T>
void add_bias(cudaStream_t stream, const T* bias, T* x, std::int64_t rows, std::int64_t channels);
/// Distance of two scales of an operand in an array, in numbers: cuBLASLt takes only scales at
/// addresses that are multiples of 16 bytes.
constexpr std::int64_t kFp8ScaleStride = 4;
/// Scales of `count` tensors that are rounded to fp8, in device memory. A number is multiplied by
/// its tensor's scale before it is rounded, and by `inverse` after the product.
struct Fp8Scales {
  float* scale;    ///< (count)
  float* inverse;  ///< (count, kFp8ScaleStride): the first of each row
  float* amax;     ///< (count): largest absolute value since the last update
  float* history;  ///< (count, length): those of earlier updates
  std::int64_t count;
  std::int64_t length;
  int margin;           ///< scales are divided by 2 to this power
  bool use_max;         ///< scales follow the largest of the history; false: the last one
  std::int64_t period;  ///< tensors with number % period == e5m2_at are e5m2, the others e4m3
  std::int64_t e5m2_at;
};
/// Sets all scales to 1 and forgets the history.
void fp8_reset_scales(cudaStream_t stream, const Fp8Scales& scales);
/// Computes scales so that the largest absolute value becomes the type's largest number. slot:
/// place of the history that is overwritten. A scale is kept if the value is 0 or infinite.
void fp8_update_scales(cudaStream_t stream, const Fp8Scales& scales, std::int64_t slot);
/// Rounds x (rows, cols) * *scale to e5m2 or e4m3: to `plain` (rows, cols) and `transposed` (cols,
/// rows), each of which may be null, and sets *amax = max(*amax, max |x|). rows, cols: multiples of
/// 16.
void fp8_quantize(cudaStream_t stream, const __nv_bfloat16* x, std::int64_t rows, std::int64_t cols,
                  bool e5m2, const float* scale, std::uint8_t* plain, std::uint8_t* transposed,
                  float* amax);

/// Converts `count` elements to fp32.
template <class T>
void widen(cudaStream_t stream, const T* from, float* to, std::int64_t count);

/// Causal attention. qkv: (B, T, 3, H, D), out: (B, T, C), log_sum: (B, H, T), saved for the
/// backward. D: at most kMaxHeadDim.
template <class T>
void attention_forward(cudaStream_t stream, const AttentionShape& shape, const T* qkv, T* out,
                       float* log_sum);
/// Computes dqkv (B, T, 3, H, D) from d_out (B, T, C). Overwrites dqkv. delta: (B, H, T), working
/// memory.
template <class T>
void attention_backward(cudaStream_t stream, const AttentionShape& shape, const T* qkv,
                        const T* out, const float* log_sum, const T* d_out, float* delta, T* dqkv);
constexpr std::int64_t kMaxHeadDim = 256;

}  // namespace train_gpt::cuda
