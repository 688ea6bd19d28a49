// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace train_gpt {

/// Sizes of a decoder with the architecture of GPT-2. Fields are named as the flags; the comments
/// give the keys of GPT-2's config.json.
struct ModelConfig {
  std::int64_t layers = 4;           ///< n_layer
  std::int64_t heads = 4;            ///< n_head
  std::int64_t dim = 256;            ///< n_embd, C in shape comments
  std::int64_t max_positions = 128;  ///< n_positions: rows of the position table
  std::int64_t vocab = 256;          ///< vocab_size, V in shape comments
  bool tie_word_embeddings = true;   ///< the output head is the token embedding
  float layer_norm_epsilon = 1e-5f;

  [[nodiscard]] std::int64_t head_dim() const { return dim / heads; }
};

/// Reads GPT-2's config.json. Requires n_layer, n_head, n_embd, n_positions and vocab_size. Throws
/// Error(config) with file and key, Error(not_supported) for variants of the model that this
/// program does not have.
ModelConfig read_model_config(const std::string& path);

/// Throws Error(config) if a size is not positive or the heads do not divide the channels.
void check_model_config(const ModelConfig& config);

/// Returns the floating-point operations of the matrix products in one forward and backward over
/// `tokens` tokens in sequences of `seq_len`. Attention is counted in full, without the saving of
/// causality.
double training_flops(const ModelConfig& config, std::int64_t seq_len, std::int64_t tokens);

}  // namespace train_gpt
