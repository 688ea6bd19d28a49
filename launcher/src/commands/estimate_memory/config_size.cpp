// SPDX-License-Identifier: Apache-2.0
// Computes the number of parameters of a model from its config.json, by one formula per model_type.
// The formulas add up the shapes of the layers in the model classes of Hugging Face
// Transformers.
#include "acc/base/error.hpp"
#include "acc/settings/faults.hpp"
#include "acc/settings/settings.hpp"
#include "commands/estimate_memory/model_size.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace acc::launcher::commands {
namespace {

using documents::Node;

/// Access to the keys of a config.json. Collects all missing and invalid keys, so that `raise` can
/// report them together.
class Config {
 public:
  explicit Config(const documents::Document& document) : document_(document) {}

  std::int64_t operator[](std::string_view key) {
    const Node* node = document_.root.find(key);
    const auto value = node == nullptr ? std::nullopt : parse_integer(node->text);
    if (!value || *value < 0 || *value > kLongestSide) {
      faults_.add((node == nullptr ? document_.path.string() : node->where) + ": " +
                  std::string(key) + " must be an integer 0.." + std::to_string(kLongestSide) +
                  ", got " + (node == nullptr ? "nothing" : "\"" + node->text + "\""));
      return 1;
    }
    return *value;
  }
  /// Returns the value of a key, or `otherwise` if it is absent or null.
  std::int64_t value_or(std::string_view key, std::int64_t otherwise) {
    const Node* node = document_.root.find(key);
    return node == nullptr || node->is_empty() ? otherwise : (*this)[key];
  }
  [[nodiscard]] bool flag(std::string_view key, bool otherwise) const {
    const Node* node = document_.root.find(key);
    return node == nullptr || node->is_empty() ? otherwise : node->text == "true";
  }
  [[nodiscard]] std::string text(std::string_view key) const {
    const Node* node = document_.root.find(key);
    return node == nullptr ? "" : node->text;
  }
  void raise() const { faults_.raise(); }

 private:
  const documents::Document& document_;
  settings::Faults faults_;
};

using Parts = std::vector<ModelPart>;

std::int64_t linear(std::int64_t in, std::int64_t out, bool bias = true) {
  return counted_sum(counted_product(in, out), bias ? out : 0);
}

/// Adds `times` linear layers to a unit.
void add_linear(ModelPart& unit, std::int64_t in, std::int64_t out, bool bias = true,
                std::int64_t times = 1) {
  unit.numel = counted_sum(unit.numel, counted_product(times, linear(in, out, bias)));
  unit.matrices.push_back({out, in, times});
}

/// The standard transformer block: four projections of attention, two of the feed-forward layer
/// (width to inner width and back), all with bias, and two LayerNorms.
ModelPart plain_block(std::string name, std::int64_t width, std::int64_t inner,
                      std::int64_t count) {
  ModelPart block{std::move(name), 4 * width, count, true};
  add_linear(block, width, width, true, 4);
  add_linear(block, width, inner);
  add_linear(block, inner, width);
  return block;
}

// One function per family of models. A part with `true` is a repeated layer, which is a unit.
Parts gpt2(Config& config) {
  const std::int64_t width = config["n_embd"];
  const std::int64_t vocabulary = config["vocab_size"];
  Parts parts = {
      {"wte", vocabulary * width},
      {"wpe", config["n_positions"] * width},
      plain_block("block", width, config.value_or("n_inner", 4 * width), config["n_layer"]),
      {"ln_f", 2 * width}};
  if (!config.flag("tie_word_embeddings", true)) {
    parts.push_back({"lm_head", vocabulary * width});
  }
  return parts;
}

/// Differences between the models whose layers are built like Llama's.
struct LlamaKind {
  bool query_key_value_bias = false;
  bool query_key_norm = false;
  bool tied = false;
};

Parts llama_like(Config& config, LlamaKind kind) {
  const std::int64_t width = config["hidden_size"];
  const std::int64_t inner = config["intermediate_size"];
  const std::int64_t vocabulary = config["vocab_size"];
  const std::int64_t heads = config["num_attention_heads"];
  const std::int64_t head = config.value_or("head_dim", width / std::max<std::int64_t>(heads, 1));
  const std::int64_t key_values = config.value_or("num_key_value_heads", heads) * head;
  const bool bias = config.flag("attention_bias", false);
  const bool mlp_bias = config.flag("mlp_bias", false);
  const bool in_bias = bias || kind.query_key_value_bias;
  ModelPart layer{"layer", 2 * width + (kind.query_key_norm ? 2 * head : 0),
                  config["num_hidden_layers"], true};
  add_linear(layer, width, heads * head, in_bias);
  add_linear(layer, width, key_values, in_bias, 2);
  add_linear(layer, heads * head, width, bias);
  // Mixture of experts (Mixtral): the experts' MLPs, and a router that scores each expert.
  const std::int64_t experts = config.value_or("num_local_experts", 0);
  const std::int64_t mlps = std::max<std::int64_t>(experts, 1);
  add_linear(layer, width, inner, mlp_bias, 2 * mlps);
  add_linear(layer, inner, width, mlp_bias, mlps);
  if (experts > 0) {
    add_linear(layer, width, experts, false);
  }
  Parts parts = {{"embed_tokens", vocabulary * width}, std::move(layer), {"norm", width}};
  if (!config.flag("tie_word_embeddings", kind.tied)) {
    parts.push_back({"lm_head", vocabulary * width});
  }
  return parts;
}

Parts llama(Config& config) {
  return llama_like(config, {});
}
Parts gemma(Config& config) {
  return llama_like(config, {.tied = true});
}
Parts qwen2(Config& config) {
  return llama_like(config, {.query_key_value_bias = true});
}
Parts qwen3(Config& config) {
  return llama_like(config, {.query_key_norm = true});
}

Parts bert(Config& config) {
  const std::int64_t width = config["hidden_size"];
  const std::int64_t rows =
      config["vocab_size"] + config["max_position_embeddings"] + config["type_vocab_size"];
  return {{"word_embeddings", config["vocab_size"] * width},
          {"other embeddings", (rows - config["vocab_size"]) * width + 2 * width},
          plain_block("layer", width, config["intermediate_size"], config["num_hidden_layers"]),
          {"pooler", linear(width, width)}};
}

Parts distilbert(Config& config) {
  const std::int64_t width = config["dim"];
  return {{"word_embeddings", config["vocab_size"] * width},
          {"other embeddings", config["max_position_embeddings"] * width + 2 * width},
          plain_block("layer", width, config["hidden_dim"], config["n_layers"])};
}

Parts opt(Config& config) {
  const std::int64_t width = config["hidden_size"];
  const std::int64_t embedding = config.value_or("word_embed_proj_dim", width);
  Parts parts = {{"embed_tokens", config["vocab_size"] * embedding},
                 // OPTLearnedPositionalEmbedding has an offset of 2.
                 {"embed_positions", (config["max_position_embeddings"] + 2) * width},
                 plain_block("layer", width, config["ffn_dim"], config["num_hidden_layers"])};
  if (config.flag("do_layer_norm_before", true)) {
    parts.push_back({"final_layer_norm", 2 * width});
  }
  if (embedding != width) {
    parts.push_back({"projections", 2 * embedding * width});
  }
  return parts;
}

Parts gpt_neox(Config& config) {
  const std::int64_t width = config["hidden_size"];
  const std::int64_t vocabulary = config["vocab_size"];
  Parts parts = {
      {"embed_in", vocabulary * width},
      plain_block("layer", width, config["intermediate_size"], config["num_hidden_layers"]),
      {"final_layer_norm", 2 * width}};
  if (!config.flag("tie_word_embeddings", false)) {
    parts.push_back({"embed_out", vocabulary * width});
  }
  return parts;
}

Parts t5(Config& config) {
  const std::int64_t width = config["d_model"];
  const std::int64_t heads = config["num_heads"];
  const std::int64_t vocabulary = config["vocab_size"];
  const std::int64_t head = config["d_kv"];
  const std::int64_t inner = config["d_ff"];
  const std::int64_t layers = config["num_layers"];
  // T5 has no bias. Its RMSNorm before each sublayer is counted with the sublayer (+ width).
  const bool gated = config.text("feed_forward_proj").starts_with("gated-");
  const auto block = [&](const char* name, std::int64_t attentions, std::int64_t count) {
    ModelPart made{name, (attentions + 1) * width, count, true};
    add_linear(made, width, heads * head, false, 3 * attentions);
    add_linear(made, heads * head, width, false, attentions);
    add_linear(made, width, inner, false, gated ? 2 : 1);
    add_linear(made, inner, width, false);
    return made;
  };
  const std::int64_t buckets = config.value_or("relative_attention_num_buckets", 32);
  Parts parts = {{"shared", vocabulary * width},
                 block("encoder block", 1, layers),
                 block("decoder block", 2, config.value_or("num_decoder_layers", layers)),
                 {"relative_attention_bias", buckets * heads, 2},
                 {"final_layer_norm", width, 2}};
  if (!config.flag("tie_word_embeddings", true)) {
    parts.push_back({"lm_head", vocabulary * width});
  }
  return parts;
}

struct Formula {
  std::string_view model_type;
  Parts (*parts)(Config&);
};
constexpr std::array kFormulas = {Formula{"bert", bert},         Formula{"distilbert", distilbert},
                                  Formula{"gemma", gemma},       Formula{"gpt2", gpt2},
                                  Formula{"gpt_neox", gpt_neox}, Formula{"llama", llama},
                                  Formula{"mistral", llama},     Formula{"mixtral", llama},
                                  Formula{"opt", opt},           Formula{"phi3", llama},
                                  Formula{"qwen2", qwen2},       Formula{"qwen3", qwen3},
                                  Formula{"roberta", bert},      Formula{"t5", t5},
                                  Formula{"xlm-roberta", bert}};

Error unknown_type(const documents::Document& document, const std::string& type) {
  std::string known;
  for (const Formula& formula : kFormulas) {
    known += (known.empty() ? "" : ", ") + std::string(formula.model_type);
  }
  const Node* node = document.root.find("model_type");
  return Error(node == nullptr ? Errc::config : Errc::not_supported,
               (node == nullptr ? document.path.string() : node->where) + ": model_type " +
                   (type.empty() ? "is missing" : type) + "; the supported types are " + known +
                   " (or give a safetensors file, or the number of parameters)");
}

}  // namespace

ModelSize size_from_config(const documents::Document& document) {
  Config config(document);
  const std::string type = config.text("model_type");
  for (const Formula& formula : kFormulas) {
    if (formula.model_type == type) {
      ModelSize size{.name = type + " of " + document.path.string(),
                     .parts = formula.parts(config)};
      config.raise();
      return size;
    }
  }
  throw unknown_type(document, type);
}

}  // namespace acc::launcher::commands
