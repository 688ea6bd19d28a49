// SPDX-License-Identifier: Apache-2.0
#include "model/language_model.hpp"

#include "model/gpt.hpp"
#ifdef TRAIN_GPT_CUDA
#include "cuda/gpt.hpp"
#endif

namespace train_gpt {

std::unique_ptr<LanguageModel> make_language_model(acc::Runtime& runtime, acc::Model& model,
                                                   const ModelConfig& config, BatchShape largest) {
  if (runtime.device().kind == acc::settings::Device::cpu) {
    return std::make_unique<Gpt>(model, config, largest,
                                 runtime.activation_checkpointing() ? &runtime : nullptr);
  }
#ifdef TRAIN_GPT_CUDA
  return cuda::make_gpt(runtime, model, config, largest);
#else
  throw acc::Error(acc::Errc::device,
                   "train_gpt was built without CUDA (ACC_CUDA); it cannot "
                   "compute on " +
                       runtime.device().name);
#endif
}

}  // namespace train_gpt
