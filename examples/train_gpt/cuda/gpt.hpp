// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/language_model.hpp"

#include <cstdint>
#include <memory>

namespace train_gpt::cuda {

/// Largest number of logits that exist at the same time.
constexpr std::int64_t kMostLogits = std::int64_t{1} << 29;

/// Returns the model on a GPU, in the runtime's compute dtype (bfloat16 or float16 on tensor cores,
/// or float32). All work is queued on the stream of the runtime's device, and the model's GPU
/// memory is counted among the runtime's. runtime: must outlive the model. Throws Error(config) for
/// sizes that the kernels do not support, Error(out_of_memory), and Error(device) if cuBLASLt is
/// missing.
std::unique_ptr<LanguageModel> make_gpt(acc::Runtime& runtime, acc::Model& model,
                                        const ModelConfig& config, BatchShape largest,
                                        std::int64_t most_logits = kMostLogits);

}  // namespace train_gpt::cuda
