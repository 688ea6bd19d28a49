#pragma once

#include "block.hpp"
#include "block_inputs.hpp"
#include "buffer.hpp"
#include "language_model.hpp"
#include "model_config.hpp"
#include "parameters.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace train_gpt {

/// The model on the CPU, with hand-written forward and backward.
class Gpt final : public LanguageModel {
 public:
  /// keeper: with it, activation checkpointing: it keeps the blocks' inputs, and their backwards
  /// compute the rest again. It outlives this.
  Gpt(acc::Model& model, const ModelConfig& config, BatchShape largest,
      acc::Runtime* keeper = nullptr);

  void train(const Batch& batch) override;
  double take_loss() override;
  std::span<const float> next_token_logits(std::span<const std::int32_t> tokens) override;
  [[nodiscard]] std::int64_t activation_bytes() const override;
  [[nodiscard]] std::int64_t kept_bytes() const override;

 private:
  const float* embed(const acc::ForwardUse& use, std::span<const std::int32_t> ids,
                     BatchShape shape);
  /// keep: whether a backward with checkpointing follows
  const float* forward_blocks(const float* x, BatchShape shape, bool keep);
  double loss_and_gradient(acc::BackwardUse& use, const float* x, const Batch& batch,
                           FloatGradient& d_head);
  void backward_blocks(BatchShape shape);
  void embed_backward(acc::BackwardUse& use, const Batch& batch, FloatGradient& d_wte);
  [[nodiscard]] bool is_tied() const { return config_.tie_word_embeddings; }

  ModelConfig config_;
  GptParameters p_;
  std::optional<BlockInputs> inputs_;     // with activation checkpointing
  std::vector<Activations> activations_;  // of each block, or one set for all
  std::vector<Block> blocks_;

  std::int64_t logit_rows_;  // rows whose logits exist at a time
  Scratch scratch_;
  UnitValues values_;  // of the root
  Buffer embedded_;    // (N, C)
  Buffer stats_;       // (2, N): mean and rstd of ln_f
  Buffer logits_;      // (logit rows, V), turned into their gradient in place
  Buffer dx_;          // (N, C)
  double loss_ = 0.0;  // since the last take_loss
};

}  // namespace train_gpt
