// SPDX-License-Identifier: Apache-2.0
#include "model/model_config.hpp"

#include <acc/base/error.hpp>
#include <nlohmann/json.hpp>

#include <fstream>

namespace train_gpt {
namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& message) {
  throw acc::Error(acc::Errc::config, message);
}

Json parse_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    fail("cannot read the model configuration " + path);
  }
  try {
    return Json::parse(file);
  } catch (const Json::parse_error& error) {
    fail(path + ": not JSON: " + error.what());
  }
}

std::int64_t required_size(const Json& json, const std::string& path, const char* key) {
  const auto found = json.find(key);
  if (found == json.end()) {
    fail(path + ": the key '" + key + "' is missing; GPT-2's config.json has it");
  }
  if (!found->is_number_integer()) {
    fail(path + ": " + key + " must be an integer, got " + found->dump());
  }
  return found->get<std::int64_t>();
}

/// Refuses an optional key whose value is not the only one that this program supports.
void expect(const Json& json, const std::string& path, const char* key, const Json& supported) {
  const auto found = json.find(key);
  if (found != json.end() && !found->is_null() && *found != supported) {
    throw acc::Error(acc::Errc::not_supported, path + ": " + key + " " + found->dump() +
                                                   " is not supported, only " + supported.dump());
  }
}

}  // namespace

ModelConfig read_model_config(const std::string& path) {
  const Json json = parse_file(path);
  if (!json.is_object()) {
    fail(path + ": expected a JSON object, got " + std::string(json.type_name()));
  }
  ModelConfig config;
  config.layers = required_size(json, path, "n_layer");
  config.heads = required_size(json, path, "n_head");
  config.dim = required_size(json, path, "n_embd");
  config.max_positions = required_size(json, path, "n_positions");
  config.vocab = required_size(json, path, "vocab_size");
  expect(json, path, "n_inner", 4 * config.dim);
  expect(json, path, "activation_function", "gelu_new");
  try {
    config.tie_word_embeddings = json.value("tie_word_embeddings", true);
    config.layer_norm_epsilon = json.value("layer_norm_epsilon", 1e-5f);
  } catch (const Json::type_error&) {
    fail(path + ": tie_word_embeddings must be true or false, layer_norm_epsilon a number");
  }
  return config;
}

void check_model_config(const ModelConfig& config) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1) {
      fail(std::string(name) + " must be at least 1, got " + std::to_string(value));
    }
  };
  positive("layers (n_layer)", config.layers);
  positive("heads (n_head)", config.heads);
  positive("dim (n_embd)", config.dim);
  positive("seq_len (n_positions)", config.max_positions);
  positive("vocab (vocab_size)", config.vocab);
  if (config.dim % config.heads != 0) {
    fail("dim must be a multiple of heads, got dim " + std::to_string(config.dim) + " and heads " +
         std::to_string(config.heads));
  }
}

double training_flops(const ModelConfig& config, std::int64_t seq_len, std::int64_t tokens) {
  const auto real = [](std::int64_t value) { return static_cast<double>(value); };
  // 12 C^2 weights per block (3 + 1 in attention, 4 + 4 in the MLP) and the head. Each weight takes
  // one multiply-add in the forward and two in the backward: 6 operations per token. The two
  // attention products take 2 * T * C multiply-adds per token forward and twice that backward: 12 T
  // C.
  const double weights =
      real(config.layers * 12 * config.dim * config.dim) + real(config.vocab * config.dim);
  const double attention = real(config.layers * seq_len * config.dim);
  return real(tokens) * (6.0 * weights + 12.0 * attention);
}

}  // namespace train_gpt
