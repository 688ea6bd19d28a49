#pragma once

#include "../attention.hpp"

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

/// What lies between the matrix products, on the GPU. T is float or __nv_bfloat16, sums are fp32.
/// All are queued on `stream`; results do not depend on timing. Matrices are row-major and do not
/// overlap unless a comment says "in place". N rows (batch x time), C channels (a multiple of 8, at
/// most kMaxChannels), V vocabulary. Pointers are multiples of 16 bytes.
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

/// The rows of a batch grouped by token: group g is rows[starts[g]] to rows[starts[g + 1]] - 1, all
/// of token tokens[g]. Memory of the device.
struct TokenGroups {
  const std::int32_t* tokens;
  const std::int32_t* starts;
  const std::int32_t* rows;
  std::int64_t count;
};
/// d_wte (V, C) and d_wpe (positions, C) += what dx (N, C) asks for.
template <class T>
void embedding_backward(cudaStream_t stream, const TokenGroups& groups, const T* dx, T* d_wte,
                        T* d_wpe, std::int64_t rows, std::int64_t time, std::int64_t channels);

/// z = (x - mean) * rstd * gamma + beta per row, the biased variance. x, z: (N, C)
template <class T>
void layernorm_forward(cudaStream_t stream, const T* x, const T* gamma, const T* beta, float eps,
                       T* z, RowStats stats, std::int64_t rows, std::int64_t channels);
/// fp32 elements that layernorm_backward needs to work in.
std::int64_t layernorm_scratch(std::int64_t channels);
/// Adds to dx (N, C; overwrites it where not `accumulate`), dgamma (C) and dbeta (C) what dz (N, C)
/// asks for.
template <class T>
void layernorm_backward(cudaStream_t stream, const T* x, const T* gamma, RowStats stats,
                        const T* dz, T* dx, bool accumulate, T* dgamma, T* dbeta, float* scratch,
                        std::int64_t rows, std::int64_t channels);

/// losses (N) = -log softmax(logits)[target]. In place: the logits (N, V), `stride` elements (a
/// multiple of 8, at least V) from row to row, become the gradient (softmax - one-hot) * scale;
/// columns from V on become zero.
template <class T>
void cross_entropy(cudaStream_t stream, T* logits, const std::int32_t* targets, float scale,
                   float* losses, std::int64_t rows, std::int64_t vocab, std::int64_t stride);
/// *total += scale * the sum of losses (N).
void add_losses(cudaStream_t stream, const float* losses, std::int64_t rows, double scale,
                double* total);

/// h = gelu(u), the tanh form of GPT-2. (count), a multiple of 8
template <class T>
void gelu_forward(cudaStream_t stream, const T* u, T* h, std::int64_t count);
/// In place: dh becomes du.
template <class T>
void gelu_backward(cudaStream_t stream, const T* u, T* dh_to_du, std::int64_t count);

/// fp32 elements that column_sums needs to work in.
std::int64_t column_sums_scratch(std::int64_t channels);
/// sums (C) = beta * sums + column sums of x (N, C); with beta 0 the old sums are not read. C may
/// here exceed kMaxChannels.
template <class T>
void column_sums(cudaStream_t stream, const T* x, T* sums, float beta, float* scratch,
                 std::int64_t rows, std::int64_t channels);
/// to (count), fp32, = from
template <class T>
void widen(cudaStream_t stream, const T* from, float* to, std::int64_t count);

/// Causal attention. qkv: (B, T, 3, H, D), out: (B, T, C), log_sum: (B, H, T), kept for the
/// backward. D: at most 256.
template <class T>
void attention_forward(cudaStream_t stream, const AttentionShape& shape, const T* qkv, T* out,
                       float* log_sum);
/// Overwrites dqkv (B, T, 3, H, D) from d_out (B, T, C). delta: (B, H, T) to work in.
template <class T>
void attention_backward(cudaStream_t stream, const AttentionShape& shape, const T* qkv,
                        const T* out, const float* log_sum, const T* d_out, float* delta, T* dqkv);
constexpr std::int64_t kMaxHeadDim = 256;

}  // namespace train_gpt::cuda
