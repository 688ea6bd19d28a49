#pragma once

#include <cstdint>
#include <string>

namespace train_gpt {

/// Sizes of a GPT-2-shaped decoder. Field names follow the command line, the JSON keys GPT-2's.
struct ModelConfig {
  std::int64_t layers = 4;           ///< n_layer
  std::int64_t heads = 4;            ///< n_head
  std::int64_t dim = 256;            ///< n_embd, C in shape comments
  std::int64_t max_positions = 128;  ///< n_positions: rows of the position table
  std::int64_t vocab = 256;          ///< vocab_size, V in shape comments
  bool tie_word_embeddings = true;   ///< the head is the token table
  float layer_norm_epsilon = 1e-5f;

  [[nodiscard]] std::int64_t head_dim() const { return dim / heads; }
};

/// Reads GPT-2's config.json; n_layer, n_head, n_embd, n_positions and vocab_size must be there.
/// Throws Error(config) naming file and key, also for a variant that this program does not compute.
ModelConfig read_model_config(const std::string& path);

/// Throws Error(config) when a size is not positive or the heads do not divide the channels.
void check_model_config(const ModelConfig& config);

/// Floating-point operations of the matrix products of one forward and backward over `tokens`
/// tokens in sequences of `seq_len`; attention counted in full, without the causal saving.
double training_flops(const ModelConfig& config, std::int64_t seq_len, std::int64_t tokens);

}  // namespace train_gpt
