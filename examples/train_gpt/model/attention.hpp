// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/buffer.hpp"

#include <cstdint>

namespace train_gpt {

/// Sizes of one layer's attention: B sequences of T tokens, H heads of D channels, C = H * D.
struct AttentionShape {
  std::int64_t batch;
  std::int64_t time;
  std::int64_t heads;
  std::int64_t head_dim;

  [[nodiscard]] std::int64_t channels() const { return heads * head_dim; }
};

/// Working memory, shared by all layers: the attention weights of one block of queries of one head.
/// The complete (T, T) weights of a head are never stored.
struct AttentionScratch {
  explicit AttentionScratch(std::int64_t time);

  Buffer weights;   ///< (query block, T)
  Buffer d_scores;  ///< (query block, T)
  Buffer row;       ///< (query block)
};

/// Computes causal attention in blocks of queries and skips keys after a block's last query. qkv:
/// (B, T, 3, H, D), out: (B, T, C), log_sum: (B, H, T), from which the backward recomputes the
/// weights.
void attention_forward(const AttentionShape& shape, const float* qkv, float* out, float* log_sum,
                       AttentionScratch& scratch);

/// Computes dqkv (B, T, 3, H, D) from d_out (B, T, C). Overwrites dqkv.
void attention_backward(const AttentionShape& shape, const float* qkv, const float* out,
                        const float* log_sum, const float* d_out, float* dqkv,
                        AttentionScratch& scratch);

}  // namespace train_gpt
