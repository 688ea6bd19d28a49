// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/model_config.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <vector>

/// The model's parameters, registered with the runtime under GPT-2's names. Each block is one unit;
/// all other parameters belong to the root unit.
namespace train_gpt {

/// Weight and bias of a linear layer (y = x @ weight + bias), or scale and shift of a layer norm.
struct Affine {
  acc::Parameter weight, bias;
};

struct BlockParameters {
  BlockParameters(acc::Model& model, const ModelConfig& config, std::int64_t layer);

  acc::Unit* unit;
  Affine ln_1;         ///< (C)
  Affine c_attn;       ///< (C, 3C)
  Affine attn_c_proj;  ///< (C, C)
  Affine ln_2;         ///< (C)
  Affine c_fc;         ///< (C, 4C)
  Affine mlp_c_proj;   ///< (4C, C)
};

struct GptParameters {
  GptParameters(acc::Model& model, const ModelConfig& config);

  acc::Unit* root;
  acc::Parameter wte;   ///< (V, C)
  acc::Parameter wpe;   ///< (positions, C)
  Affine ln_f;          ///< (C)
  acc::Parameter head;  ///< (V, C); equals wte if the word embeddings are tied
  std::vector<BlockParameters> blocks;
};

}  // namespace train_gpt
