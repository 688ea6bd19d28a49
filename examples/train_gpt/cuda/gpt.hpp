#pragma once

#include "../language_model.hpp"

#include <cstdint>
#include <memory>

namespace train_gpt::cuda {

/// Elements of the logits that exist at a time.
constexpr std::int64_t kMostLogits = std::int64_t{1} << 29;

/// The model on a GPU, in the runtime's compute dtype (bfloat16 on tensor cores, or float32). All
/// work is queued on the device's stream. keeper: with it, activation checkpointing: it keeps the
/// blocks' inputs, and outlives the model. Throws Error(config) for sizes that the kernels are not
/// made for, Error(out_of_memory), Error(device) where cuBLASLt is missing.
std::unique_ptr<LanguageModel> make_gpt(const acc::ComputeDevice& device, acc::Model& model,
                                        const ModelConfig& config, BatchShape largest,
                                        acc::Runtime* keeper = nullptr,
                                        std::int64_t most_logits = kMostLogits);

}  // namespace train_gpt::cuda
