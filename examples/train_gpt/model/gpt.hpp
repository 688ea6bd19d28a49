// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/block.hpp"
#include "model/block_inputs.hpp"
#include "model/buffer.hpp"
#include "model/language_model.hpp"
#include "model/model_config.hpp"
#include "model/parameters.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace train_gpt {

/// The model on the CPU, with hand-written forward and backward.
class Gpt final : public LanguageModel {
 public:
  /// keeper: switches activation checkpointing on. It stores the blocks' inputs, and each block's
  /// backward recomputes its forward. Must outlive the model.
  Gpt(acc::Model& model, const ModelConfig& config, BatchShape largest,
      acc::Runtime* keeper = nullptr);

  void train(const Batch& batch) override;
  acc::IssuedMean take_loss(acc::Runtime& runtime, double micro_steps) override;
  void restart(std::int64_t largest_batch) override;
  std::span<const float> next_token_logits(std::span<const std::int32_t> tokens) override;
  [[nodiscard]] std::int64_t activation_bytes() const override;
  [[nodiscard]] std::int64_t kept_bytes() const override;

 private:
  void allocate(BatchShape largest);
  const float* embed(const acc::ForwardUse& use, std::span<const std::int32_t> ids,
                     BatchShape shape);
  double loss_and_gradient(acc::BackwardUse& use, const float* x, const Batch& batch,
                           FloatGradient& d_head);
  void embed_backward(acc::BackwardUse& use, const Batch& batch, FloatGradient& d_wte);
  [[nodiscard]] bool is_tied() const { return config_.tie_word_embeddings; }

  ModelConfig config_;
  GptParameters p_;
  acc::DType compute_dtype_;
  BatchShape largest_ = {};
  std::optional<BlockInputs> inputs_;     // with activation checkpointing
  std::vector<Activations> activations_;  // one per block, or one for all with checkpointing
  std::vector<Block> blocks_;

  std::int64_t logit_rows_ = 0;  // number of rows whose logits exist at the same time
  Scratch scratch_;
  UnitValues values_;  // parameters and gradients of the root unit
  Buffer embedded_;    // (N, C)
  Buffer stats_;       // (2, N): mean and rstd of ln_f
  Buffer logits_;      // (logit rows, V), replaced by their gradient in place
  Buffer dx_;          // (N, C)
  double loss_ = 0.0;  // sum since the last take_loss
};

}  // namespace train_gpt
