#pragma once

#include "block.hpp"
#include "buffer.hpp"
#include "model_config.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace train_gpt {

/// Token ids of one micro-batch. inputs, targets: (B, T), the targets one position ahead.
struct Batch {
  std::vector<std::int32_t> inputs;
  std::vector<std::int32_t> targets;
  BatchShape shape{};
};

/// A GPT-2-shaped decoder with hand-written forward and backward. Parameters carry GPT-2's names
/// and live in the runtime: each block is one unit, everything else belongs to the root unit.
class Gpt {
 public:
  Gpt(acc::Model& model, const ModelConfig& config, BatchShape largest);

  /// Forward and backward of one micro-batch. Returns its mean loss (nats per token); the gradient
  /// of that loss goes to the runtime.
  double train(const Batch& batch);

  /// Logits of the token that follows `tokens` (at most the largest time), on every rank: [vocab],
  /// valid until the next call. To be called under Model::no_grad().
  std::span<const float> next_token_logits(std::span<const std::int32_t> tokens);

 private:
  const float* embed(const acc::ForwardUse& use, std::span<const std::int32_t> ids,
                     BatchShape shape);
  const float* forward_blocks(const float* x, BatchShape shape);
  double loss_and_gradient(acc::BackwardUse& use, const float* x, const Batch& batch);
  void backward_blocks(BatchShape shape);
  void embed_backward(acc::BackwardUse& use, const Batch& batch);

  ModelConfig config_;
  acc::Unit& root_;
  acc::Parameter wte_, wpe_, ln_f_weight_, ln_f_bias_;
  acc::Parameter head_;  // wte_ itself where the word embeddings are tied
  std::vector<Block> blocks_;

  std::int64_t logit_rows_;  // rows whose logits exist at a time
  Scratch scratch_;
  Buffer embedded_;  // (N, C)
  Buffer stats_;     // (2, N): mean and rstd of ln_f
  Buffer logits_;    // (logit rows, V), turned into their gradient in place
  Buffer dx_;        // (N, C)
};

}  // namespace train_gpt
