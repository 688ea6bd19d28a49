#include "documents/deepspeed_blocks.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace acc::plugins::deepspeed {
namespace {

using namespace std::string_view_literals;

/// A type that a block may name. Types without parameters are PyTorch's, or take what their version
/// takes: only values that all types share are checked.
struct NamedType {
  std::string_view name;
  std::string_view parameters;  ///< joined by `|`
};

constexpr std::array kOptimizers = {
    NamedType{"Adam",
              "lr|betas|eps|weight_decay|bias_correction|amsgrad|torch_adam|adam_w_mode|"
              "set_grad_none|fp32_optimizer_states"},
    NamedType{"AdamW",
              "lr|betas|eps|weight_decay|bias_correction|amsgrad|torch_adam|adam_w_mode|"
              "set_grad_none|fp32_optimizer_states"},
    NamedType{"Lamb",
              "lr|betas|eps|weight_decay|bias_correction|amsgrad|eps_inside_sqrt|max_grad_norm|"
              "max_coeff|min_coeff"},
    NamedType{"Lion", "lr|betas|weight_decay|set_grad_none|fp32_optimizer_states"},
    NamedType{"Adagrad", "lr|eps|weight_decay|amsgrad|fp32_optimizer_states"},
    NamedType{"Muon", ""},
    NamedType{"MuAdam", ""},
    NamedType{"MuAdamW", ""},
    NamedType{"MuSGD", ""},
    NamedType{"Adadelta", ""},
    NamedType{"Adafactor", ""},
    NamedType{"Adamax", ""},
    NamedType{"ASGD", ""},
    NamedType{"LBFGS", ""},
    NamedType{"NAdam", ""},
    NamedType{"RAdam", ""},
    NamedType{"RMSprop", ""},
    NamedType{"Rprop", ""},
    NamedType{"SGD", ""},
    NamedType{"SparseAdam", ""},
};

constexpr std::array kSchedulers = {
    NamedType{"WarmupLR",
              "warmup_min_lr|warmup_max_lr|warmup_num_steps|warmup_type|last_batch_iteration"},
    NamedType{"WarmupDecayLR",
              "warmup_min_lr|warmup_max_lr|warmup_num_steps|warmup_type|total_num_steps|"
              "last_batch_iteration"},
    NamedType{"WarmupCosineLR",
              "total_num_steps|warmup_num_steps|warmup_min_ratio|cos_min_ratio|warmup_type|"
              "last_batch_iteration"},
    NamedType{"OneCycle",
              "cycle_min_lr|cycle_max_lr|decay_lr_rate|cycle_first_step_size|"
              "cycle_second_step_size|cycle_first_stair_count|cycle_second_stair_count|"
              "decay_step_size|cycle_momentum|cycle_min_mom|cycle_max_mom|decay_mom_rate|"
              "last_batch_iteration"},
    NamedType{"LRRangeTest",
              "lr_range_test_min_lr|lr_range_test_step_size|lr_range_test_step_rate|"
              "lr_range_test_staircase|last_batch_iteration"},
    NamedType{"ChainedScheduler", ""},
    NamedType{"ConstantLR", ""},
    NamedType{"CosineAnnealingLR", ""},
    NamedType{"CosineAnnealingWarmRestarts", ""},
    NamedType{"CyclicLR", ""},
    NamedType{"ExponentialLR", ""},
    NamedType{"LambdaLR", ""},
    NamedType{"LinearLR", ""},
    NamedType{"MultiplicativeLR", ""},
    NamedType{"MultiStepLR", ""},
    NamedType{"OneCycleLR", ""},
    NamedType{"PolynomialLR", ""},
    NamedType{"ReduceLROnPlateau", ""},
    NamedType{"SequentialLR", ""},
    NamedType{"StepLR", ""},
};

constexpr SettingRow parameter(std::string_view name, Type type, std::string_view allowed = {}) {
  return {.key = name, .type = type, .allowed = allowed};
}

/// Parameters that mean the same whatever the type.
constexpr std::array kParameters = {
    parameter("lr", Type::real, "0.."),
    parameter("eps", Type::real, "0.."),
    parameter("weight_decay", Type::real, "0.."),
    parameter("bias_correction", Type::boolean),
    parameter("amsgrad", Type::boolean),
    parameter("torch_adam", Type::boolean),
    parameter("adam_w_mode", Type::boolean),
    parameter("warmup_min_lr", Type::real, "0.."),
    parameter("warmup_max_lr", Type::real, "0.."),
    parameter("warmup_num_steps", Type::count, "1.."),
    parameter("warmup_type", Type::choice, "log|linear"),
    parameter("total_num_steps", Type::count, "1.."),
    parameter("warmup_min_ratio", Type::real, "0.."),
    parameter("cos_min_ratio", Type::real, "0.."),
    parameter("cycle_min_lr", Type::real, "0.."),
    parameter("cycle_max_lr", Type::real, "0.."),
    parameter("lr_range_test_min_lr", Type::real, "0.."),
    parameter("lr_range_test_step_size", Type::count, "1.."),
};

class TypedBlock {
 public:
  TypedBlock(std::string name, std::span<const NamedType> types, bool any_case, Faults& faults,
             std::vector<DeepSpeedFile::Key>& filled_by_program)
      : name_(std::move(name)),
        types_(types),
        any_case_(any_case),
        faults_(faults),
        filled_by_program_(filled_by_program) {}

  void check(const Node& block, std::span<const std::string_view> keys) {
    if (block.kind != Node::Kind::map) {
      faults_.add(block.where + ": " + name_ + " must be an object, { \"type\": ... }");
      return;
    }
    for (const auto& [key, node] : block.entries) {
      if (std::ranges::find(keys, key) == keys.end()) {
        faults_.add(node.where + ": unknown key \"" + key + "\" in " + name_ +
                    did_you_mean(key, keys));
      }
    }
    const NamedType* type = read_type(block);
    const Node* parameters = block.find("params");
    if (type != nullptr && parameters != nullptr && !parameters->is_empty()) {
      check_parameters(*type, *parameters);
    }
  }

 private:
  const NamedType* read_type(const Node& block) {
    const Node* type = block.find("type");
    if (type == nullptr || type->is_empty()) {
      faults_.add((type == nullptr ? block : *type).where + ": " + name_ + " needs a type");
      return nullptr;
    }
    std::vector<std::string_view> names;
    for (const NamedType& known : types_) {
      if (type->text == known.name || (any_case_ && lower(type->text) == lower(known.name))) {
        return &known;
      }
      names.push_back(known.name);
    }
    faults_.add(type->where + ": " + name_ + ".type \"" + type->text +
                "\" is none that DeepSpeed or PyTorch has" + did_you_mean(type->text, names));
    return nullptr;
  }

  void check_parameters(const NamedType& type, const Node& block) {
    if (block.kind != Node::Kind::map) {
      faults_.add(block.where + ": " + name_ + ".params must be an object, { \"key\": value }");
      return;
    }
    const auto known = split(type.parameters, '|');
    for (const auto& [key, node] : block.entries) {
      if (!known.empty() && std::ranges::find(known, key) == known.end()) {
        faults_.add(node.where + ": unknown parameter \"" + key + "\" of " +
                    std::string(type.name) + did_you_mean(key, known));
      } else {
        check_parameter(key, node);
      }
    }
  }

  void check_parameter(const std::string& key, const Node& node) {
    const std::string path = name_ + ".params." + key;
    const auto* row = std::ranges::find(kParameters, key, &SettingRow::key);
    if (node.text == "auto") {
      filled_by_program_.push_back({path, node.text, node.where});
    } else if (key == "betas") {
      check_betas(path, node);
    } else if (row != kParameters.end() && !node.is_empty()) {
      SettingRow named = *row;
      named.key = path;
      faults_.collect([&] { check_value(named, node.text, {Source::Kind::file, node.where}); });
    }
  }

  void check_betas(const std::string& path, const Node& node) {
    const bool two = node.kind == Node::Kind::list && node.items.size() == 2;
    const auto below_one = [](const Node& item) {
      const auto value = parse_real(item.text);
      return value && *value >= 0 && *value < 1;
    };
    if (!two || !std::ranges::all_of(node.items, below_one)) {
      faults_.add(node.where + ": " + path + " must be two numbers of at least 0 and below 1");
    }
  }

  std::string name_;
  std::span<const NamedType> types_;
  bool any_case_;
  Faults& faults_;
  std::vector<DeepSpeedFile::Key>& filled_by_program_;
};

}  // namespace

void check_optimizer(const Node& block, Faults& faults,
                     std::vector<DeepSpeedFile::Key>& filled_by_program) {
  constexpr std::array kKeys = {"type"sv, "params"sv, "legacy_fusion"sv};
  TypedBlock("optimizer", kOptimizers, true, faults, filled_by_program).check(block, kKeys);
}

void check_scheduler(const Node& block, Faults& faults,
                     std::vector<DeepSpeedFile::Key>& filled_by_program) {
  constexpr std::array kKeys = {"type"sv, "params"sv};
  TypedBlock("scheduler", kSchedulers, false, faults, filled_by_program).check(block, kKeys);
}

}  // namespace acc::plugins::deepspeed
