// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/// Facts about the optimizers of libacc_runtime. The interfaces of C and Python, the settings,
/// messages, checkpoints and the memory estimate follow from them. The arithmetic of a rule is in
/// runtime/src/kernels/update_rules.hpp.
namespace acc {

/// A number that a rule depends on: at least `least` and below `limit`.
struct RuleCoefficient {
  std::string_view name;  ///< in the interfaces, in checkpoints and in messages
  double fallback = 0.0;
  double limit = std::numeric_limits<double>::infinity();
  double least = 0.0;
  bool is_switch = false;       ///< 0: off, 1: on
  std::string_view needs = {};  ///< a coefficient that must be above 0 if this one is
};

/// Parameters that a rule treats alike. Matrices have two dimensions (OptimizerRule::is_matrix),
/// and are in no parameter group that has its parameters updated as the others are.
enum class RuleScope { all, matrices, others };

/// Where a state lies, and its shape for a parameter [..., rows, columns].
enum class StateShape {
  sharded,  ///< that of the parameter, divided over the ranks as the parameter is
  // The others lie on the rank that owns the parameter.
  whole,               ///< that of the parameter
  rows_kept,           ///< [..., rows, 1]
  columns_kept,        ///< [..., 1, columns]
  rows,                ///< [..., rows]
  columns,             ///< [..., columns]
  rows_by_rows,        ///< [rows, rows]
  columns_by_columns,  ///< [columns, columns]
};

/// A value that the optimizer keeps of a parameter.
struct RuleState {
  std::string_view key;         ///< in checkpoints of torch and of DeepSpeed
  std::string_view needs = {};  ///< exists only if this coefficient is above 0
  RuleScope of = RuleScope::all;
  bool is_signed = false;  ///< may be negative
  StateShape shape = StateShape::sharded;
};

/// Returns the shape of a state. of: the parameter's; at least two dimensions unless the state has
/// all of them.
inline std::vector<std::int64_t> state_shape(StateShape shape, std::vector<std::int64_t> of) {
  switch (shape) {
    case StateShape::sharded:
    case StateShape::whole: break;
    case StateShape::rows_kept: of.back() = 1; break;
    case StateShape::columns_kept: of[of.size() - 2] = 1; break;
    case StateShape::rows: of.pop_back(); break;
    case StateShape::columns: of.erase(of.end() - 2); break;
    case StateShape::rows_by_rows: of.back() = of[of.size() - 2]; break;
    case StateShape::columns_by_columns: of[of.size() - 2] = of.back(); break;
  }
  return of;
}

/// The coefficient that limits the side of square states: a larger one does not exist.
inline constexpr std::string_view kLargestSide = "max_precondition_dim";

/// Coefficients of the rules whose states may be kept in 8 bits (kernels/packed_states.hpp), as in
/// bitsandbytes: a switch, and the number of elements from which on a parameter has such states.
inline constexpr std::string_view kStates8Bit = "states_8bit";
inline constexpr std::string_view kMin8BitSize = "min_8bit_size";

/// A key of a parameter group in a checkpoint of the optimizer's class in torch or DeepSpeed.
struct GroupKey {
  /// Of a coefficient, or "betas" for beta1 and beta2, or "eps" if the coefficients are eps1 and
  /// eps2.
  std::string_view name;
  std::string_view value = {};  ///< in Python, of a key that is not a coefficient
};

struct OptimizerRule {
  std::string_view name;   ///< in settings, checkpoints and the interfaces
  std::string_view title;  ///< in messages
  std::span<const RuleCoefficient> coefficients;
  std::span<const RuleState> states;
  std::span<const GroupKey> group_keys;  ///< all of the class, in its order
  bool counts_steps = true;              ///< the class's states contain "step"
  /// Of a rule for matrices: the rule of the other parameters, with the coefficients of the same
  /// names; its `eps` is "adam_eps" and its `lr` has the factor "adam_lr_ratio". The rule itself if
  /// it updates them as wholes too; a matrix then has two or more dimensions.
  std::string_view others = {};
  /// A step of a parameter has the length of a ratio of two norms of the whole parameter (LAMB).
  bool needs_norms = false;

  [[nodiscard]] constexpr bool has_matrices() const { return !others.empty(); }
  /// True if all parameters are updated as wholes.
  [[nodiscard]] constexpr bool has_wholes_only() const { return others == name; }
  [[nodiscard]] constexpr bool is_matrix(std::size_t dimensions) const {
    return has_matrices() && (has_wholes_only() ? dimensions >= 2 : dimensions == 2);
  }
  [[nodiscard]] constexpr const RuleCoefficient* coefficient(std::string_view of) const {
    const auto found = std::ranges::find(coefficients, of, &RuleCoefficient::name);
    return found == coefficients.end() ? nullptr : &*found;
  }
};

namespace rules {

// torch.optim.AdamW and Adam of torch 2.13. `bias_correction` is DeepSpeed's.
inline constexpr auto kAdamWCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-3},
    {.name = "beta1", .fallback = 0.9, .limit = 1.0},
    {.name = "beta2", .fallback = 0.999, .limit = 1.0},
    {.name = "eps", .fallback = 1e-8},
    {.name = "weight_decay", .fallback = 1e-2},
    {.name = "amsgrad", .is_switch = true},
    {.name = "bias_correction", .fallback = 1.0, .is_switch = true},
    {.name = kStates8Bit, .is_switch = true},
    {.name = kMin8BitSize, .fallback = 4096.0},
});
inline constexpr auto kAdamCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-3},
    {.name = "beta1", .fallback = 0.9, .limit = 1.0},
    {.name = "beta2", .fallback = 0.999, .limit = 1.0},
    {.name = "eps", .fallback = 1e-8},
    {.name = "weight_decay"},
    {.name = "amsgrad", .is_switch = true},
    {.name = "bias_correction", .fallback = 1.0, .is_switch = true},
    {.name = kStates8Bit, .is_switch = true},
    {.name = kMin8BitSize, .fallback = 4096.0},
});
inline constexpr auto kAdamStates =
    std::to_array<RuleState>({{.key = "exp_avg", .is_signed = true},
                              {.key = "exp_avg_sq"},
                              {.key = "max_exp_avg_sq", .needs = "amsgrad"}});
inline constexpr auto kAdamWKeys = std::to_array<GroupKey>({
    {"lr"},
    {"betas"},
    {"eps"},
    {"weight_decay"},
    {"amsgrad"},
    {"maximize", "False"},
    {"foreach", "None"},
    {"capturable", "False"},
    {"differentiable", "False"},
    {"fused", "None"},
    {"decoupled_weight_decay", "True"},
});
inline constexpr auto kAdamKeys = std::to_array<GroupKey>({
    {"lr"},
    {"betas"},
    {"eps"},
    {"weight_decay"},
    {"amsgrad"},
    {"maximize", "False"},
    {"foreach", "None"},
    {"capturable", "False"},
    {"differentiable", "False"},
    {"fused", "None"},
    {"decoupled_weight_decay", "False"},
});

// torch.optim.NAdam of torch 2.13. `mu_product` is a function of the number of steps.
inline constexpr auto kNAdamCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 2e-3},
    {.name = "beta1", .fallback = 0.9, .limit = 1.0},
    {.name = "beta2", .fallback = 0.999, .limit = 1.0},
    {.name = "eps", .fallback = 1e-8},
    {.name = "weight_decay"},
    {.name = "momentum_decay", .fallback = 4e-3},
    {.name = "decoupled_weight_decay", .is_switch = true},
});
inline constexpr auto kNAdamStates =
    std::to_array<RuleState>({{.key = "exp_avg"}, {.key = "exp_avg_sq"}});
inline constexpr auto kNAdamKeys = std::to_array<GroupKey>({
    {"lr"},
    {"betas"},
    {"eps"},
    {"weight_decay"},
    {"momentum_decay"},
    {"decoupled_weight_decay"},
    {"maximize", "False"},
    {"foreach", "None"},
    {"capturable", "False"},
    {"differentiable", "False"},
});

// torch.optim.Adagrad of torch 2.13.
inline constexpr auto kAdagradCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-2},
    {.name = "lr_decay"},
    {.name = "eps", .fallback = 1e-10},
    {.name = "weight_decay"},
});
inline constexpr auto kAdagradStates = std::to_array<RuleState>({{.key = "sum"}});
inline constexpr auto kAdagradKeys = std::to_array<GroupKey>({
    {"lr"},
    {"lr_decay"},
    {"eps"},
    {"weight_decay"},
    {"initial_accumulator_value", "0"},
    {"foreach", "None"},
    {"maximize", "False"},
    {"differentiable", "False"},
    {"fused", "None"},
});

// torch.optim.RMSprop of torch 2.13.
inline constexpr auto kRmspropCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-2},
    {.name = "momentum"},
    {.name = "alpha", .fallback = 0.99},
    {.name = "eps", .fallback = 1e-8},
    {.name = "centered", .is_switch = true},
    {.name = "weight_decay"},
});
inline constexpr auto kRmspropStates =
    std::to_array<RuleState>({{.key = "square_avg"},
                              {.key = "momentum_buffer", .needs = "momentum"},
                              {.key = "grad_avg", .needs = "centered"}});
inline constexpr auto kRmspropKeys = std::to_array<GroupKey>({
    {"lr"},
    {"momentum"},
    {"alpha"},
    {"eps"},
    {"centered"},
    {"weight_decay"},
    {"capturable", "False"},
    {"foreach", "None"},
    {"maximize", "False"},
    {"differentiable", "False"},
});

// torch.optim.SGD of torch 2.13.
inline constexpr auto kSgdCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-3},
    {.name = "momentum"},
    {.name = "nesterov", .is_switch = true, .needs = "momentum"},
    {.name = "weight_decay"},
});
inline constexpr auto kSgdStates =
    std::to_array<RuleState>({{.key = "momentum_buffer", .needs = "momentum"}});
inline constexpr auto kSgdKeys = std::to_array<GroupKey>({
    {"lr"},
    {"momentum"},
    {"dampening", "0"},
    {"weight_decay"},
    {"nesterov"},
    {"maximize", "False"},
    {"foreach", "None"},
    {"differentiable", "False"},
    {"fused", "None"},
});

// DeepSpeed 0.19.8's Lion. The one for the CPU also saves an exp_avg_sq, which stays 0.
inline constexpr auto kLionCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-3},
    {.name = "beta1", .fallback = 0.9, .limit = 1.0},
    {.name = "beta2", .fallback = 0.999, .limit = 1.0},
    {.name = "weight_decay"},
    {.name = kStates8Bit, .is_switch = true},
    {.name = kMin8BitSize, .fallback = 4096.0},
});
inline constexpr auto kLionStates =
    std::to_array<RuleState>({{.key = "exp_avg", .is_signed = true}});
inline constexpr auto kLionKeys = std::to_array<GroupKey>({{"lr"}, {"betas"}, {"weight_decay"}});

// torch.optim.Muon of torch 2.13 for matrices, and AdamW for the other parameters.
inline constexpr auto kMuonCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-3},
    {.name = "weight_decay", .fallback = 0.1},
    {.name = "momentum", .fallback = 0.95, .limit = 1.0},
    {.name = "nesterov", .fallback = 1.0, .is_switch = true},
    {.name = "eps", .fallback = 1e-7},
    {.name = "ns_steps", .fallback = 5.0, .limit = 100.0},
    {.name = "match_rms_adamw", .is_switch = true},
    {.name = "beta1", .fallback = 0.9, .limit = 1.0},
    {.name = "beta2", .fallback = 0.999, .limit = 1.0},
    {.name = "adam_eps", .fallback = 1e-8},
    {.name = "adam_lr_ratio", .fallback = 1.0},
});
inline constexpr auto kMuonStates =
    std::to_array<RuleState>({{.key = "momentum_buffer", .of = RuleScope::matrices},
                              {.key = "exp_avg", .of = RuleScope::others},
                              {.key = "exp_avg_sq", .of = RuleScope::others}});
inline constexpr auto kMuonKeys = std::to_array<GroupKey>({
    {"lr"},
    {"weight_decay"},
    {"momentum"},
    {"nesterov"},
    {"eps"},
    {"ns_steps"},
    {"match_rms_adamw"},
    {"betas"},
    {"adam_eps"},
    {"adam_lr_ratio"},
});

// DeepSpeed 0.19.8's FusedLamb, with the norms of whole parameters also where ZeRO divides them.
inline constexpr auto kLambCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-3},
    {.name = "bias_correction", .fallback = 1.0, .is_switch = true},
    {.name = "beta1", .fallback = 0.9, .limit = 1.0},
    {.name = "beta2", .fallback = 0.999, .limit = 1.0},
    {.name = "eps", .fallback = 1e-8},
    {.name = "eps_inside_sqrt", .is_switch = true},
    {.name = "weight_decay"},
    {.name = "max_coeff", .fallback = 10.0},
    {.name = "min_coeff", .fallback = 0.01},
});
inline constexpr auto kLambStates =
    std::to_array<RuleState>({{.key = "exp_avg"}, {.key = "exp_avg_sq"}});
inline constexpr auto kLambKeys = std::to_array<GroupKey>({
    {"lr"},
    {"bias_correction"},
    {"betas"},
    {"eps"},
    {"weight_decay"},
    {"max_grad_norm", "0"},
    {"max_coeff"},
    {"min_coeff"},
});

// torch.optim.Adafactor of torch 2.13. eps1: torch's default is that of float32.
inline constexpr auto kAdafactorCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-2},
    {.name = "beta2_decay", .fallback = -0.8, .limit = 0.0, .least = -1e3},
    {.name = "eps1", .fallback = 1.1920928955078125e-07},
    {.name = "eps2", .fallback = 1e-3},
    {.name = "d", .fallback = 1.0, .least = 1.0},
    {.name = "weight_decay"},
});
inline constexpr auto kAdafactorStates = std::to_array<RuleState>(
    {{.key = "row_var", .of = RuleScope::matrices, .shape = StateShape::rows_kept},
     {.key = "col_var", .of = RuleScope::matrices, .shape = StateShape::columns_kept},
     {.key = "variance", .of = RuleScope::others, .shape = StateShape::whole}});
inline constexpr auto kAdafactorKeys = std::to_array<GroupKey>({
    {"lr"},
    {"beta2_decay"},
    {"eps"},
    {"d"},
    {"weight_decay"},
    {"foreach", "None"},
    {"maximize", "False"},
});

// transformers.optimization.Adafactor of transformers 4 and 5. beta1 0: without a first moment.
inline constexpr auto kAdafactorHfCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-3},
    {.name = "eps1", .fallback = 1e-30},
    {.name = "eps2", .fallback = 1e-3},
    {.name = "clip_threshold", .fallback = 1.0},
    {.name = "decay_rate", .fallback = -0.8, .limit = 0.0, .least = -1e3},
    {.name = "beta1", .limit = 1.0},
    {.name = "weight_decay"},
    {.name = "scale_parameter", .fallback = 1.0, .is_switch = true},
    {.name = "relative_step", .fallback = 1.0, .is_switch = true},
    {.name = "warmup_init", .is_switch = true, .needs = "relative_step"},
});
inline constexpr auto kAdafactorHfStates = std::to_array<RuleState>(
    {{.key = "exp_avg_sq_row", .of = RuleScope::matrices, .shape = StateShape::rows},
     {.key = "exp_avg_sq_col", .of = RuleScope::matrices, .shape = StateShape::columns},
     {.key = "exp_avg_sq", .of = RuleScope::others, .shape = StateShape::whole},
     {.key = "exp_avg", .needs = "beta1", .shape = StateShape::whole}});
inline constexpr auto kAdafactorHfKeys = std::to_array<GroupKey>({
    {"lr"},
    {"eps"},
    {"clip_threshold"},
    {"decay_rate"},
    {"beta1", "None"},
    {"weight_decay"},
    {"scale_parameter"},
    {"relative_step"},
    {"warmup_init"},
});

// SOAP (arXiv 2409.11321, algorithm 3) for matrices, and AdamW for the other parameters.
inline constexpr auto kSoapCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 3e-3},
    {.name = "beta1", .fallback = 0.95, .limit = 1.0},
    {.name = "beta2", .fallback = 0.95, .limit = 1.0},
    {.name = "shampoo_beta", .fallback = 0.95, .limit = 1.0},
    {.name = "eps", .fallback = 1e-8},
    {.name = "weight_decay", .fallback = 1e-2},
    {.name = "precondition_frequency", .fallback = 10.0, .least = 1.0},
    {.name = kLargestSide, .fallback = 10000.0},
    {.name = "adam_eps", .fallback = 1e-8},
    {.name = "adam_lr_ratio", .fallback = 1.0},
});
inline constexpr auto kSoapStates = std::to_array<RuleState>(
    {{.key = "exp_avg", .of = RuleScope::matrices, .shape = StateShape::whole},
     {.key = "exp_avg_sq", .of = RuleScope::matrices, .shape = StateShape::whole},
     {.key = "GG_left", .of = RuleScope::matrices, .shape = StateShape::rows_by_rows},
     {.key = "GG_right", .of = RuleScope::matrices, .shape = StateShape::columns_by_columns},
     {.key = "Q_left", .of = RuleScope::matrices, .shape = StateShape::rows_by_rows},
     {.key = "Q_right", .of = RuleScope::matrices, .shape = StateShape::columns_by_columns},
     {.key = "exp_avg", .of = RuleScope::others},
     {.key = "exp_avg_sq", .of = RuleScope::others}});
inline constexpr auto kSoapKeys = std::to_array<GroupKey>({
    {"lr"},
    {"betas"},
    {"shampoo_beta"},
    {"eps"},
    {"weight_decay"},
    {"precondition_frequency"},
    {kLargestSide},
    {"adam_eps"},
    {"adam_lr_ratio"},
});

// Shampoo (arXiv 1802.09568, algorithm 1) for matrices, and AdamW for the other parameters.
inline constexpr auto kShampooCoefficients = std::to_array<RuleCoefficient>({
    {.name = "lr", .fallback = 1e-1},
    {.name = "momentum", .limit = 1.0},
    {.name = "eps", .fallback = 1e-4},
    {.name = "weight_decay"},
    {.name = "precondition_frequency", .fallback = 1.0, .least = 1.0},
    {.name = kLargestSide, .fallback = 10000.0},
    {.name = "beta1", .fallback = 0.9, .limit = 1.0},
    {.name = "beta2", .fallback = 0.999, .limit = 1.0},
    {.name = "adam_eps", .fallback = 1e-8},
    {.name = "adam_lr_ratio", .fallback = 1e-2},
});
inline constexpr auto kShampooStates = std::to_array<RuleState>(
    {{.key = "precond_left", .of = RuleScope::matrices, .shape = StateShape::rows_by_rows},
     {.key = "precond_right", .of = RuleScope::matrices, .shape = StateShape::columns_by_columns},
     {.key = "inv_precond_left", .of = RuleScope::matrices, .shape = StateShape::rows_by_rows},
     {.key = "inv_precond_right",
      .of = RuleScope::matrices,
      .shape = StateShape::columns_by_columns},
     {.key = "momentum_buffer",
      .needs = "momentum",
      .of = RuleScope::matrices,
      .shape = StateShape::whole},
     {.key = "exp_avg", .of = RuleScope::others},
     {.key = "exp_avg_sq", .of = RuleScope::others}});
inline constexpr auto kShampooKeys = std::to_array<GroupKey>({
    {"lr"},
    {"momentum"},
    {"eps"},
    {"weight_decay"},
    {"precondition_frequency"},
    {kLargestSide},
    {"betas"},
    {"adam_eps"},
    {"adam_lr_ratio"},
});

}  // namespace rules

inline constexpr auto kOptimizerRules = std::to_array<OptimizerRule>({
    {.name = "adamw",
     .title = "AdamW",
     .coefficients = rules::kAdamWCoefficients,
     .states = rules::kAdamStates,
     .group_keys = rules::kAdamWKeys},
    {.name = "adam",
     .title = "Adam",
     .coefficients = rules::kAdamCoefficients,
     .states = rules::kAdamStates,
     .group_keys = rules::kAdamKeys},
    {.name = "sgd",
     .title = "SGD",
     .coefficients = rules::kSgdCoefficients,
     .states = rules::kSgdStates,
     .group_keys = rules::kSgdKeys,
     .counts_steps = false},
    {.name = "lion",
     .title = "Lion",
     .coefficients = rules::kLionCoefficients,
     .states = rules::kLionStates,
     .group_keys = rules::kLionKeys},
    {.name = "nadam",
     .title = "NAdam",
     .coefficients = rules::kNAdamCoefficients,
     .states = rules::kNAdamStates,
     .group_keys = rules::kNAdamKeys},
    {.name = "adagrad",
     .title = "Adagrad",
     .coefficients = rules::kAdagradCoefficients,
     .states = rules::kAdagradStates,
     .group_keys = rules::kAdagradKeys},
    {.name = "rmsprop",
     .title = "RMSprop",
     .coefficients = rules::kRmspropCoefficients,
     .states = rules::kRmspropStates,
     .group_keys = rules::kRmspropKeys},
    {.name = "lamb",
     .title = "Lamb",
     .coefficients = rules::kLambCoefficients,
     .states = rules::kLambStates,
     .group_keys = rules::kLambKeys,
     .needs_norms = true},
    {.name = "muon",
     .title = "Muon",
     .coefficients = rules::kMuonCoefficients,
     .states = rules::kMuonStates,
     .group_keys = rules::kMuonKeys,
     .others = "adamw"},
    {.name = "adafactor",
     .title = "Adafactor",
     .coefficients = rules::kAdafactorCoefficients,
     .states = rules::kAdafactorStates,
     .group_keys = rules::kAdafactorKeys,
     .others = "adafactor"},
    {.name = "adafactor_transformers",
     .title = "Adafactor of transformers",
     .coefficients = rules::kAdafactorHfCoefficients,
     .states = rules::kAdafactorHfStates,
     .group_keys = rules::kAdafactorHfKeys,
     .others = "adafactor_transformers"},
    {.name = "soap",
     .title = "SOAP",
     .coefficients = rules::kSoapCoefficients,
     .states = rules::kSoapStates,
     .group_keys = rules::kSoapKeys,
     .others = "adamw"},
    {.name = "shampoo",
     .title = "Shampoo",
     .coefficients = rules::kShampooCoefficients,
     .states = rules::kShampooStates,
     .group_keys = rules::kShampooKeys,
     .others = "adamw"},
});

/// Returns null for an unknown name.
constexpr const OptimizerRule* find_optimizer_rule(std::string_view name) {
  const auto* const found = std::ranges::find(kOptimizerRules, name, &OptimizerRule::name);
  return found == kOptimizerRules.end() ? nullptr : found;
}

/// Returns the names or titles of all rules, joined by commas.
inline std::string all_optimizer_rules(std::string_view OptimizerRule::*text) {
  std::string joined;
  for (const OptimizerRule& rule : kOptimizerRules) {
    joined += (joined.empty() ? "" : ", ") + std::string(rule.*text);
  }
  return joined;
}

}  // namespace acc
