// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/batch.hpp"
#include "model/model_config.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace train_gpt {

/// A decoder with the architecture of GPT-2. The runtime owns its parameters. Implemented for CPU
/// and GPU.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;
  LanguageModel(const LanguageModel&) = delete;
  LanguageModel& operator=(const LanguageModel&) = delete;

  /// Runs forward and backward of one micro-batch. The gradient of its weighted mean loss goes to
  /// the runtime. On a GPU the work is only queued when the function returns.
  virtual void train(const Batch& batch) = 0;

  /// Returns the sum of the weighted mean losses (nats per token) of the micro-batches since the
  /// last call, divided by `micro_steps`, as the mean over all ranks. Does not wait for queued
  /// work. Collective.
  virtual acc::IssuedMean take_loss(acc::Runtime& runtime, double micro_steps) = 0;

  /// Forgets the losses since `take_loss`, after an error, and takes micro-batches of up to so many
  /// sequences from now on, if those were fewer. On a GPU, where no rank rejoins, it does nothing.
  virtual void restart(std::int64_t /*largest_batch*/) {}

  /// Returns the logits of the token that follows `tokens`, on every rank: [vocab], valid until the
  /// next call. tokens: at most `largest.time`. Must be called under Model::no_grad().
  virtual std::span<const float> next_token_logits(std::span<const std::int32_t> tokens) = 0;

  /// Bytes of device memory that the model holds in addition to the runtime: activations, gradients
  /// between layers, workspace.
  [[nodiscard]] virtual std::int64_t activation_bytes() const = 0;
  /// Peak of the bytes that the runtime stored for the model (`Runtime::keep`), on the device or
  /// the host: the blocks' inputs with activation checkpointing.
  [[nodiscard]] virtual std::int64_t kept_bytes() const = 0;

 protected:
  LanguageModel() = default;
};

/// Returns the model for the runtime's device, with activation checkpointing if the runtime's
/// settings ask for it. largest: largest micro-batch. The runtime must outlive the model. Throws
/// Error(not_supported) for sizes that the device's kernels do not support, Error(out_of_memory).
std::unique_ptr<LanguageModel> make_language_model(acc::Runtime& runtime, acc::Model& model,
                                                   const ModelConfig& config, BatchShape largest);

}  // namespace train_gpt
