#pragma once

#include "batch.hpp"
#include "model_config.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace train_gpt {

/// A GPT-2-shaped decoder whose parameters live in the runtime, wherever it computes.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  LanguageModel(const LanguageModel&) = delete;
  LanguageModel& operator=(const LanguageModel&) = delete;

  /// Forward and backward of one micro-batch. The gradient of its weighted mean loss goes to the
  /// runtime.
  /// On a GPU the work is queued and may not have happened yet.
  virtual void train(const Batch& batch) = 0;

  /// The weighted mean losses (nats per token) of the micro-batches since the last call, summed.
  /// Waits for them.
  virtual double take_loss() = 0;

  /// Logits of the token that follows `tokens` (at most the largest time), on every rank: [vocab],
  /// valid until the next call. To be called under Model::no_grad().
  virtual std::span<const float> next_token_logits(std::span<const std::int32_t> tokens) = 0;

  /// What it holds of the device's memory beside the runtime: activations, gradients between
  /// layers, workspace.
  [[nodiscard]] virtual std::int64_t activation_bytes() const = 0;
  /// The most that the runtime kept for it (`Runtime::keep`), on the device or the host: with
  /// activation checkpointing the blocks' inputs.
  [[nodiscard]] virtual std::int64_t kept_bytes() const = 0;

 protected:
  LanguageModel() = default;
};

/// The model for the runtime's device, with activation checkpointing where the runtime asks for it;
/// `largest` is the most it will be given. The runtime outlives it. Throws Error(config)
/// for sizes that the device's kernels are not made for, Error(out_of_memory).
std::unique_ptr<LanguageModel> make_language_model(acc::Runtime& runtime, acc::Model& model,
                                                   const ModelConfig& config, BatchShape largest);

}  // namespace train_gpt
