// SPDX-License-Identifier: Apache-2.0
#include "model/parameters.hpp"

#include <cmath>
#include <string>

namespace train_gpt {
namespace {

constexpr float kInitialStddev = 0.02f;
constexpr acc::ParameterOptions kNoDecay{.weight_decay = false};

Affine norm(acc::Unit& unit, const std::string& name, std::int64_t channels) {
  return {unit.parameter(name + ".weight", {channels}, acc::ones(), kNoDecay),
          unit.parameter(name + ".bias", {channels}, acc::zeros(), kNoDecay)};
}

Affine linear(acc::Unit& unit, const std::string& name, std::int64_t in, std::int64_t out,
              float stddev) {
  return {unit.parameter(name + ".weight", {in, out}, acc::normal(stddev)),
          unit.parameter(name + ".bias", {out}, acc::zeros(), kNoDecay)};
}

}  // namespace

BlockParameters::BlockParameters(acc::Model& model, const ModelConfig& config, std::int64_t layer)
    : unit(&model.unit("transformer.h." + std::to_string(layer), "Block")) {
  const std::int64_t C = config.dim;
  // The two projections into the residual stream start smaller, because 2L of them are summed (as
  // in GPT-2's code).
  const float residual_stddev =
      kInitialStddev / std::sqrt(2.0f * static_cast<float>(config.layers));
  ln_1 = norm(*unit, "ln_1", C);
  c_attn = linear(*unit, "attn.c_attn", C, 3 * C, kInitialStddev);
  attn_c_proj = linear(*unit, "attn.c_proj", C, C, residual_stddev);
  ln_2 = norm(*unit, "ln_2", C);
  c_fc = linear(*unit, "mlp.c_fc", C, 4 * C, kInitialStddev);
  mlp_c_proj = linear(*unit, "mlp.c_proj", 4 * C, C, residual_stddev);
}

GptParameters::GptParameters(acc::Model& model, const ModelConfig& config)
    : root(&model.root("", "GPT2LMHeadModel")) {
  const std::int64_t C = config.dim;
  wte = root->parameter("transformer.wte.weight", {config.vocab, C}, acc::normal(kInitialStddev));
  wpe = root->parameter("transformer.wpe.weight", {config.max_positions, C},
                        acc::normal(kInitialStddev));
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    blocks.emplace_back(model, config, layer);
  }
  ln_f = norm(*root, "transformer.ln_f", C);
  if (config.tie_word_embeddings) {
    head = wte;
    root->tie("lm_head.weight", wte);
  } else {
    head = root->parameter("lm_head.weight", {config.vocab, C}, acc::normal(kInitialStddev));
  }
}

}  // namespace train_gpt
