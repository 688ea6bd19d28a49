#pragma once

#include "buffer.hpp"

#include <cstdint>

namespace train_gpt {

/// Sizes of the attention of one layer: B sequences of T tokens, H heads of D channels, C = H * D.
struct AttentionShape {
  std::int64_t batch;
  std::int64_t time;
  std::int64_t heads;
  std::int64_t head_dim;

  [[nodiscard]] std::int64_t channels() const { return heads * head_dim; }
};

/// Working memory, shared by all layers: the weights of one block of queries of one head. The
/// (T, T) weights of a head never exist as a whole.
struct AttentionScratch {
  explicit AttentionScratch(std::int64_t time);

  Buffer weights;   ///< (query block, T)
  Buffer d_scores;  ///< (query block, T)
  Buffer row;       ///< (query block)
};

/// Causal attention in blocks of queries, keys above the diagonal skipped. qkv: (B, T, 3, H, D),
/// out: (B, T, C), log_sum: (B, H, T), kept so that the backward makes the weights again.
void attention_forward(const AttentionShape& shape, const float* qkv, float* out, float* log_sum,
                       AttentionScratch& scratch);

/// Overwrites dqkv (B, T, 3, H, D) from d_out (B, T, C).
void attention_backward(const AttentionShape& shape, const float* qkv, const float* out,
                        const float* log_sum, const float* d_out, float* dqkv,
                        AttentionScratch& scratch);

}  // namespace train_gpt
