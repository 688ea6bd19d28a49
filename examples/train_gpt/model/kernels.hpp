// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// The loops between the matrix products: single-threaded and vectorised; the best instruction set
/// is chosen at run time. Buffers are row-major fp32 and must not overlap, except where a comment
/// says "in place". Letters in shapes: N rows (batch x time), C channels, V vocabulary.
namespace train_gpt {

/// Mean and 1/sqrt(variance + eps) of each row. The forward saves them for the backward.
struct RowStats {
  float* mean;  ///< (N)
  float* rstd;  ///< (N)
};

/// z = (x - mean) * rstd * gamma + beta for each row, with the biased variance. x, z: (N, C)
void layernorm_forward(const float* x, const float* gamma, const float* beta, float eps, float* z,
                       RowStats stats, std::int64_t rows, std::int64_t channels);
/// Recomputes z from saved statistics.
void layernorm_recompute(const float* x, const float* gamma, const float* beta, RowStats stats,
                         float* z, std::int64_t rows, std::int64_t channels);
/// Adds the gradients that follow from dz (N, C) to dx (N, C), dgamma (C) and dbeta (C).
void layernorm_backward(const float* x, const float* gamma, RowStats stats, const float* dz,
                        float* dx, float* dgamma, float* dbeta, std::int64_t rows,
                        std::int64_t channels);

/// h = gelu(u + bias) in the tanh form of GPT-2. u, h: (N, C), bias: (C)
void gelu_forward(const float* u, const float* bias, float* h, std::int64_t rows,
                  std::int64_t channels);
/// In place: replaces u by h = gelu(u + bias) and dh by du. Adds du's column sums to dbias (C).
void gelu_backward(float* u_to_h, const float* bias, float* dh_to_du, float* dbias,
                   std::int64_t rows, std::int64_t channels);

/// Returns the sum over rows of -log softmax(logits)[target]. In place: replaces the logits (N, V)
/// by the gradient (softmax - one-hot) * scale.
double cross_entropy(float* logits, const std::int32_t* targets, float scale, std::int64_t rows,
                     std::int64_t vocab);

/// Attention weights of a block of queries, starting at first_query, for the keys [0, keys). In
/// place: replaces dot products s (N, keys) by exp(scale * (s - row maximum)), or 0 if key > query.
/// inverse_sum: (N), 1 / sum of a row. log_sum: (N), logarithm of the sum of exp(scale * s).
void causal_exponentials(float* scores, float scale, std::int64_t first_query, float* inverse_sum,
                         float* log_sum, std::int64_t queries, std::int64_t keys);
/// In place: replaces dot products by the weights p, and dp by p * (dp - delta) * scale. log_sum,
/// delta: (N)
void causal_softmax_backward(float* scores_to_p, float* dp_to_ds, const float* log_sum,
                             const float* delta, float scale, std::int64_t first_query,
                             std::int64_t queries, std::int64_t keys);

/// out = a + bias for each row; a may be null and then counts as 0. out, a: (N, C), bias: (C)
void add_bias(float* out, const float* a, const float* bias, std::int64_t rows,
              std::int64_t channels);
/// sums (C) += column sums of x (N, C)
void add_column_sums(float* sums, const float* x, std::int64_t rows, std::int64_t channels);
void add(float* out, const float* x, std::int64_t count);
void scale(float* x, float factor, std::int64_t count);
float dot(const float* a, const float* b, std::int64_t count);

/// Convert float32 to bfloat16, rounding to nearest even and keeping NaN, and back.
void narrow(const float* from, std::uint16_t* to, std::int64_t count);
void widen(const std::uint16_t* from, float* to, std::int64_t count);
/// out += x for different dtypes; each sum is computed in float32.
void add_widened(float* out, const std::uint16_t* x, std::int64_t count);
void add_narrowed(std::uint16_t* out, const float* x, std::int64_t count);

}  // namespace train_gpt
