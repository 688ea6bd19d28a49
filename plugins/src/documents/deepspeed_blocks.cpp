// SPDX-License-Identifier: Apache-2.0
#include "documents/deepspeed_blocks.hpp"

#include "acc/base/optimizer_rules.hpp"
#include "documents/deepspeed_schema.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

namespace acc::documents::deepspeed {
namespace {

// The blocks `optimizer` and `scheduler` of DeepSpeed's file: { "type": ..., "params": {...} }. The
// parameters depend on the type. Types and parameters are checked against DeepSpeed 0.19.8 and
// PyTorch; a type or parameter that libacc_runtime lacks becomes part of the type's text, with
// which the runtime refuses it only if the program asks for the file's optimizer.

using namespace std::string_view_literals;

bool lists(std::string_view joined, std::string_view word) {
  const auto words = split(joined, '|');
  return std::ranges::find(words, word) != words.end();
}

/// Types that a block may name. Types without a list of parameters are PyTorch's or depend on the
/// version of a library; then only parameters that all types share are checked.
struct NamedTypes {
  std::string_view names;       ///< joined by `|`
  std::string_view parameters;  ///< joined by `|`
};

constexpr std::array kOptimizers = {
    NamedTypes{"Adam|AdamW",
               "lr|betas|eps|weight_decay|bias_correction|amsgrad|torch_adam|adam_w_mode|"
               "set_grad_none|fp32_optimizer_states"},
    NamedTypes{"Lamb",
               "lr|betas|eps|weight_decay|bias_correction|amsgrad|eps_inside_sqrt|max_grad_norm|"
               "max_coeff|min_coeff"},
    NamedTypes{"Lion", "lr|betas|weight_decay|set_grad_none|fp32_optimizer_states"},
    NamedTypes{"Adam8bit|AdamW8bit", "lr|betas|eps|weight_decay|min_8bit_size"},
    NamedTypes{"Lion8bit", "lr|betas|weight_decay|min_8bit_size"},
    NamedTypes{"Adagrad", "lr|eps|weight_decay|amsgrad|fp32_optimizer_states"},
    NamedTypes{"Muon|MuAdam|MuAdamW|MuSGD|Adadelta|Adafactor|Adamax|ASGD|LBFGS|NAdam|RAdam|RMSprop|"
               "Rprop|SGD|SparseAdam",
               ""},
};

constexpr std::array kSchedulers = {
    NamedTypes{"WarmupLR",
               "warmup_min_lr|warmup_max_lr|warmup_num_steps|warmup_type|last_batch_iteration"},
    NamedTypes{"WarmupDecayLR",
               "warmup_min_lr|warmup_max_lr|warmup_num_steps|warmup_type|total_num_steps|"
               "last_batch_iteration"},
    NamedTypes{"WarmupCosineLR",
               "total_num_steps|warmup_num_steps|warmup_min_ratio|cos_min_ratio|warmup_type|"
               "last_batch_iteration"},
    NamedTypes{"OneCycle",
               "cycle_min_lr|cycle_max_lr|decay_lr_rate|cycle_first_step_size|"
               "cycle_second_step_size|cycle_first_stair_count|cycle_second_stair_count|"
               "decay_step_size|cycle_momentum|cycle_min_mom|cycle_max_mom|decay_mom_rate|"
               "last_batch_iteration"},
    NamedTypes{"LRRangeTest",
               "lr_range_test_min_lr|lr_range_test_step_size|lr_range_test_step_rate|"
               "lr_range_test_staircase|last_batch_iteration"},
    NamedTypes{"ChainedScheduler|ConstantLR|CosineAnnealingLR|CosineAnnealingWarmRestarts|CyclicLR|"
               "ExponentialLR|LambdaLR|LinearLR|MultiplicativeLR|MultiStepLR|OneCycleLR|"
               "PolynomialLR|ReduceLROnPlateau|SequentialLR|StepLR",
               ""},
};

/// The type that a block names.
struct NamedType {
  std::string_view name;
  std::string_view parameters;
};

constexpr settings::SettingRow parameter(std::string_view name, settings::Type type,
                                         std::string_view allowed = {}) {
  return {.key = name, .type = type, .allowed = allowed};
}

/// Parameters with the same meaning for every type and without a row in the settings table.
constexpr std::array kParameters = {
    parameter("bias_correction", settings::Type::boolean),
    parameter("amsgrad", settings::Type::boolean),
    parameter("torch_adam", settings::Type::boolean),
    parameter("adam_w_mode", settings::Type::boolean),
    parameter("muon_lr", settings::Type::real, "0.."),
    parameter("adam_lr", settings::Type::real, "0.."),
    parameter("cycle_min_lr", settings::Type::real, "0.."),
    parameter("cycle_max_lr", settings::Type::real, "0.."),
    parameter("decay_lr_rate", settings::Type::real, "0.."),
    parameter("cycle_first_step_size", settings::Type::count, "1.."),
    parameter("cycle_second_step_size", settings::Type::count, "0.."),
    parameter("cycle_first_stair_count", settings::Type::count, "0.."),
    parameter("cycle_second_stair_count", settings::Type::count, "0.."),
    parameter("decay_step_size", settings::Type::count, "0.."),
    parameter("cycle_momentum", settings::Type::boolean),
    parameter("cycle_min_mom", settings::Type::real, "0.."),
    parameter("cycle_max_mom", settings::Type::real, "0.."),
    parameter("decay_mom_rate", settings::Type::real, "0.."),
    parameter("lr_range_test_min_lr", settings::Type::real, "0.."),
    parameter("lr_range_test_step_size", settings::Type::count, "1.."),
    parameter("lr_range_test_step_rate", settings::Type::real, "0.."),
    parameter("lr_range_test_staircase", settings::Type::boolean),
};

bool is_adam(std::string_view type) {
  return type == "Adam" || type == "AdamW";
}

/// A type that DeepSpeed lacks: an optimizer of bitsandbytes 0.50.2. Its states have 8 bits.
struct Type8Bit {
  std::string_view name;
  std::string_view rule;
  std::array<std::pair<std::string_view, std::string_view>, 3> defaults = {};
};
constexpr std::array kTypes8Bit = {
    Type8Bit{"Adam8bit", "adamw", {{{"weight_decay", "0"}}}},  // decouples the decay too
    Type8Bit{"AdamW8bit", "adamw"},
    Type8Bit{"Lion8bit", "lion", {{{"lr", "1e-4"}, {"betas", "0.9,0.99"}}}},
};

const Type8Bit* find_8bit(std::string_view type) {
  const auto* const found = std::ranges::find(kTypes8Bit, type, &Type8Bit::name);
  return found == kTypes8Bit.end() ? nullptr : found;
}

/// True for DeepSpeed's "Adam" that adds the weight decay to the gradient. It decouples the decay,
/// as AdamW does, unless adam_w_mode is false.
bool couples(std::string_view type, const Node& parameters) {
  const Node* adam_w_mode = parameters.find("adam_w_mode");
  return type == "Adam" && adam_w_mode != nullptr &&
         settings::parse_boolean(adam_w_mode->text) == false;
}

/// Returns the runtime's rule of a type; null if it has none.
const OptimizerRule* rule_of(std::string_view type, const Node& parameters) {
  if (const Type8Bit* const found = find_8bit(type)) {
    return find_optimizer_rule(found->rule);
  }
  const bool decouples = is_adam(type) && !couples(type, parameters);
  return find_optimizer_rule(decouples ? "adamw" : lower(std::string(type)));
}

/// The type of a parameter that the runtime gets in `optimizer_values` or `scheduler_values`.
/// Nothing for any other parameter.
using ValueType = std::optional<settings::SettingRow> (*)(const NamedType& type,
                                                          const Node& parameters,
                                                          const std::string& key);

std::optional<settings::SettingRow> optimizer_value(const NamedType& type, const Node& parameters,
                                                    const std::string& key) {
  if (type.name == "Muon" && lists("muon_lr|adam_lr", key)) {
    return *std::ranges::find(kParameters, key, &settings::SettingRow::key);
  }
  const OptimizerRule* const rule = rule_of(type.name, parameters);
  const RuleCoefficient* const found = rule == nullptr ? nullptr : rule->coefficient(key);
  if (found == nullptr) {
    return std::nullopt;
  }
  return parameter(found->name, found->is_switch ? settings::Type::boolean : settings::Type::real,
                   found->is_switch || found->least < 0.0 ? "" : "0..");
}

std::optional<settings::SettingRow> schedule_value(const NamedType& type,
                                                   const Node& /*parameters*/,
                                                   const std::string& key) {
  const auto* const found = std::ranges::find(kParameters, key, &settings::SettingRow::key);
  const bool served = type.name == "OneCycle" || type.name == "LRRangeTest";
  return served && found != kParameters.end() ? std::optional(*found) : std::nullopt;
}

/// Parameters that the runtime may ignore if they have one of these values.
struct Quiet {
  std::string_view names;   ///< joined by `|`
  std::string_view values;  ///< joined by `|`; empty: any
};
constexpr std::array kQuiet = {
    Quiet{"bias_correction|fp32_optimizer_states", "true|1"},
    Quiet{"amsgrad|nesterov|maximize", "false|0"},
    // type_text uses adam_w_mode to choose between adam and adamw.
    Quiet{"torch_adam|adam_w_mode|set_grad_none|foreach|fused|capturable|differentiable", ""},
    Quiet{"dampening", "0|0.0"},
    Quiet{"last_batch_iteration", "-1"},
    Quiet{"ns_method", "gram|standard"},  // two ways to compute the same
    Quiet{"per_head_muon", "false|0"},
};

bool is_quiet(const NamedType& type, const std::string& name, const std::string& text) {
  if (type.name == "Muon" && name == "adam_w_mode") {
    return settings::parse_boolean(text) == true;
  }
  return std::ranges::any_of(kQuiet, [&](const Quiet& quiet) {
    return lists(quiet.names, name) && (quiet.values.empty() || lists(quiet.values, lower(text)));
  });
}

/// Checks one block and turns it into values of settings. Used once.
class TypedBlock {
 public:
  TypedBlock(std::string name, std::span<const NamedTypes> types, ValueType value_type,
             bool any_case, settings::Faults& faults,
             std::vector<DeepSpeedFile::Key>& filled_by_program)
      : name_(std::move(name)),
        types_(types),
        value_type_(value_type),
        any_case_(any_case),
        faults_(faults),
        filled_by_program_(filled_by_program) {}

  std::vector<BlockValue> read(const Node& block, std::span<const std::string_view> keys) {
    if (block.kind != Node::Kind::map) {
      faults_.add(block.where + ": " + name_ + " must be an object, { \"type\": ... }");
      return {};
    }
    for (const auto& [key, node] : block.entries) {
      if (std::ranges::find(keys, key) == keys.end()) {
        faults_.add(node.where + ": unknown key \"" + key + "\" in " + name_ +
                    settings::did_you_mean(key, keys));
      }
    }
    const std::optional<NamedType> type = read_type(block);
    const Node* parameters = block.find("params");
    if (!type) {
      return {};
    }
    const Node none = Node::map();
    const bool has_parameters = parameters != nullptr && !parameters->is_empty();
    const Node& given = has_parameters ? *parameters : none;
    read_parameters(*type, given);
    values_.push_back({name_ + ".type", type_text(*type, given), block.find("type")->where});
    if (!others_.empty()) {
      values_.push_back({name_ + ".params", others_, given.where});
    }
    return std::move(values_);
  }

 private:
  std::optional<NamedType> read_type(const Node& block) {
    const Node* type = block.find("type");
    if (type == nullptr || type->is_empty()) {
      faults_.add((type == nullptr ? block : *type).where + ": " + name_ + " needs a type");
      return std::nullopt;
    }
    std::vector<std::string_view> names;
    for (const NamedTypes& known : types_) {
      for (const std::string_view name : split(known.names, '|')) {
        if (type->text == name || (any_case_ && lower(type->text) == lower(name))) {
          return NamedType{name, known.parameters};
        }
        names.push_back(name);
      }
    }
    faults_.add(type->where + ": " + name_ + ".type \"" + type->text +
                "\" is not a type of DeepSpeed or PyTorch" +
                settings::did_you_mean(type->text, names));
    return std::nullopt;
  }

  void read_parameters(const NamedType& type, const Node& block) {
    if (block.kind != Node::Kind::map) {
      faults_.add(block.where + ": " + name_ + ".params must be an object, { \"key\": value }");
      return;
    }
    const auto known = split(type.parameters, '|');
    for (const auto& [key, node] : block.entries) {
      if (!known.empty() && std::ranges::find(known, key) == known.end()) {
        faults_.add(node.where + ": unknown parameter \"" + key + "\" of " +
                    std::string(type.name) + settings::did_you_mean(key, known));
      } else {
        read_parameter(type, block, key, node);
      }
    }
    add_weight_decay(type, block);
    add_8bit(type, block);
  }

  /// Sets what makes an optimizer one of 8 bits, and the defaults in which it differs.
  void add_8bit(const NamedType& type, const Node& block) {
    const Type8Bit* const found = name_ == "optimizer" ? find_8bit(type.name) : nullptr;
    if (found == nullptr) {
      return;
    }
    add_other(std::string(kStates8Bit), "1");
    for (const auto& [key, value] : found->defaults) {
      if (!key.empty() && block.find(std::string(key)) == nullptr) {
        values_.push_back({name_ + ".params." + std::string(key), std::string(value), block.where});
      }
    }
  }

  void read_parameter(const NamedType& type, const Node& block, const std::string& key,
                      const Node& node) {
    const std::string path = name_ + ".params." + key;
    const auto* other = std::ranges::find(kParameters, key, &settings::SettingRow::key);
    if (node.text == "auto") {
      filled_by_program_.push_back({path, node.text, node.where});
    } else if (key == "betas") {
      read_betas(path, node);
    } else if (const settings::SettingRow* row = find_key(path);
               row != nullptr && !node.is_empty()) {
      if (has_value(*row, path, node)) {
        values_.push_back({path, node.text, node.where});
      }
    } else if (const auto served = value_type_(type, block, key); served && !node.is_empty()) {
      if (has_value(*served, path, node)) {
        add_other(key, node.text);
      }
    } else if (other != kParameters.end() && !node.is_empty()) {
      has_value(*other, path, node);
    }
  }

  /// Adds a value in the form "name=number"; a switch that is on is 1.
  void add_other(const std::string& key, const std::string& text) {
    const std::optional<bool> on = settings::parse_boolean(text);
    others_ += (others_.empty() ? "" : ",") + key + "=" + (on ? (*on ? "1" : "0") : text);
  }

  bool has_value(settings::SettingRow row, const std::string& path, const Node& node) {
    row.key = path;
    return faults_.collect([&] {
      settings::check_value(row, node.text, {settings::Source::Kind::deepspeed_file, node.where});
    });
  }

  void read_betas(const std::string& path, const Node& node) {
    const bool two = node.kind == Node::Kind::list && node.items.size() == 2;
    const auto below_one = [](const Node& item) {
      const auto value = settings::parse_real(item.text);
      return value && *value >= 0 && *value < 1;
    };
    if (!two || !std::ranges::all_of(node.items, below_one)) {
      faults_.add(node.where + ": " + path + " must be two numbers of at least 0 and below 1");
    } else {
      values_.push_back({path, node.items[0].text + "," + node.items[1].text, node.where});
    }
  }

  /// Sets DeepSpeed's default: its own Adam and AdamW have weight decay 0 if the file gives none.
  /// PyTorch's AdamW (torch_adam) has another default and is left alone.
  void add_weight_decay(const NamedType& type, const Node& block) {
    const Node* torch_adam = block.find("torch_adam");
    const bool is_torchs =
        torch_adam != nullptr && settings::parse_boolean(torch_adam->text) == true;
    if (is_adam(type.name) && !is_torchs && block.find("weight_decay") == nullptr) {
      values_.push_back({name_ + ".params.weight_decay", "0", block.where});
    }
  }

  /// Returns the runtime's name of an optimizer that it has, and DeepSpeed's name of any other
  /// type, with the parameters that the runtime lacks.
  std::string type_text(const NamedType& type, const Node& parameters) const {
    std::string lacking;
    for (const auto& [key, node] : parameters.entries) {
      const bool is_served = find_key(name_ + ".params." + key) != nullptr ||
                             value_type_(type, parameters, key).has_value();
      if (!is_served && !node.is_empty() && !is_quiet(type, key, node.text)) {
        lacking += (lacking.empty() ? " with " : ", ") + key + " " + node.text;
      }
    }
    const OptimizerRule* const rule =
        name_ == "optimizer" ? rule_of(type.name, parameters) : nullptr;
    return std::string(lacking.empty() && rule != nullptr ? rule->name : type.name) + lacking;
  }

  std::string name_;
  std::span<const NamedTypes> types_;
  ValueType value_type_;
  bool any_case_;
  settings::Faults& faults_;
  std::vector<DeepSpeedFile::Key>& filled_by_program_;
  std::vector<BlockValue> values_;
  std::string others_;  ///< optimizer_values or scheduler_values
};

}  // namespace

std::vector<BlockValue> read_optimizer(const Node& block, settings::Faults& faults,
                                       std::vector<DeepSpeedFile::Key>& filled_by_program) {
  constexpr std::array kKeys = {"type"sv, "params"sv, "legacy_fusion"sv};
  return TypedBlock("optimizer", kOptimizers, optimizer_value, true, faults, filled_by_program)
      .read(block, kKeys);
}

std::vector<BlockValue> read_scheduler(const Node& block, settings::Faults& faults,
                                       std::vector<DeepSpeedFile::Key>& filled_by_program) {
  constexpr std::array kKeys = {"type"sv, "params"sv};
  return TypedBlock("scheduler", kSchedulers, schedule_value, false, faults, filled_by_program)
      .read(block, kKeys);
}

}  // namespace acc::documents::deepspeed
