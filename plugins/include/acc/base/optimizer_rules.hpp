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
  /// Of a rule for matrices: the rule of the other parameters, with the coefficients of the same
  /// names; its `eps` is "adam_eps" and its `lr` has the factor "adam_lr_ratio". The rule itself if
  /// it updates them as wholes too; a matrix then has two or more dimensions.
  std::string_view others = {};
  bool counts_steps = true;  ///< the class's states contain "step"
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

constexpr RuleCoefficient number(std::string_view name, double fallback = 0.0) {
  return {.name = name, .fallback = fallback};
}
/// A coefficient below 1.
constexpr RuleCoefficient share(std::string_view name, double fallback = 0.0) {
  return {.name = name, .fallback = fallback, .limit = 1.0};
}
constexpr RuleCoefficient toggle(std::string_view name, bool is_on = false,
                                 std::string_view needs = {}) {
  return {.name = name, .fallback = is_on ? 1.0 : 0.0, .is_switch = true, .needs = needs};
}
constexpr RuleState of_matrices(std::string_view key, StateShape shape = StateShape::sharded,
                                std::string_view needs = {}) {
  return {.key = key, .needs = needs, .of = RuleScope::matrices, .shape = shape};
}
constexpr RuleState of_others(std::string_view key, StateShape shape = StateShape::sharded) {
  return {.key = key, .of = RuleScope::others, .shape = shape};
}
constexpr auto listed(auto... each) {
  return std::array{each...};
}
/// Keys of a parameter group: the name of a coefficient, or NAME=VALUE.
constexpr auto keys(auto... texts) {
  const auto key = [](std::string_view text) {
    const auto end = std::min(text.find('='), text.size());
    return GroupKey{text.substr(0, end), text.substr(std::min(end + 1, text.size()))};
  };
  return std::array{key(texts)...};
}

// torch.optim.AdamW and Adam of torch 2.13. `bias_correction` is DeepSpeed's.
constexpr auto adam_coefficients(double weight_decay) {
  return listed(number("lr", 1e-3), share("beta1", 0.9), share("beta2", 0.999), number("eps", 1e-8),
                number("weight_decay", weight_decay), toggle("amsgrad"),
                toggle("bias_correction", true), toggle(kStates8Bit), number(kMin8BitSize, 4096.0));
}
inline constexpr auto kAdamWCoefficients = adam_coefficients(1e-2);
inline constexpr auto kAdamCoefficients = adam_coefficients(0.0);
inline constexpr auto kAdamStates =
    listed(RuleState{.key = "exp_avg", .is_signed = true}, RuleState{.key = "exp_avg_sq"},
           RuleState{.key = "max_exp_avg_sq", .needs = "amsgrad"});
constexpr auto adam_keys(std::string_view is_decoupled) {
  return keys("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize=False", "foreach=None",
              "capturable=False", "differentiable=False", "fused=None", is_decoupled);
}
inline constexpr auto kAdamWKeys = adam_keys("decoupled_weight_decay=True");
inline constexpr auto kAdamKeys = adam_keys("decoupled_weight_decay=False");

// torch.optim.NAdam of torch 2.13. `mu_product` is a function of the number of steps.
inline constexpr auto kNAdamCoefficients = listed(
    number("lr", 2e-3), share("beta1", 0.9), share("beta2", 0.999), number("eps", 1e-8),
    number("weight_decay"), number("momentum_decay", 4e-3), toggle("decoupled_weight_decay"));
inline constexpr auto kNAdamStates =
    listed(RuleState{.key = "exp_avg"}, RuleState{.key = "exp_avg_sq"});
inline constexpr auto kNAdamKeys =
    keys("lr", "betas", "eps", "weight_decay", "momentum_decay", "decoupled_weight_decay",
         "maximize=False", "foreach=None", "capturable=False", "differentiable=False");

// torch.optim.Adagrad of torch 2.13.
inline constexpr auto kAdagradCoefficients =
    listed(number("lr", 1e-2), number("lr_decay"), number("eps", 1e-10), number("weight_decay"));
inline constexpr auto kAdagradStates = listed(RuleState{.key = "sum"});
inline constexpr auto kAdagradKeys =
    keys("lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value=0", "foreach=None",
         "maximize=False", "differentiable=False", "fused=None");

// torch.optim.RMSprop of torch 2.13.
inline constexpr auto kRmspropCoefficients =
    listed(number("lr", 1e-2), number("momentum"), number("alpha", 0.99), number("eps", 1e-8),
           toggle("centered"), number("weight_decay"));
inline constexpr auto kRmspropStates =
    listed(RuleState{.key = "square_avg"}, RuleState{.key = "momentum_buffer", .needs = "momentum"},
           RuleState{.key = "grad_avg", .needs = "centered"});
inline constexpr auto kRmspropKeys =
    keys("lr", "momentum", "alpha", "eps", "centered", "weight_decay", "capturable=False",
         "foreach=None", "maximize=False", "differentiable=False");

// torch.optim.SGD of torch 2.13.
inline constexpr auto kSgdCoefficients =
    listed(number("lr", 1e-3), number("momentum"), toggle("nesterov", false, "momentum"),
           number("weight_decay"));
inline constexpr auto kSgdStates = listed(RuleState{.key = "momentum_buffer", .needs = "momentum"});
inline constexpr auto kSgdKeys =
    keys("lr", "momentum", "dampening=0", "weight_decay", "nesterov", "maximize=False",
         "foreach=None", "differentiable=False", "fused=None");

// DeepSpeed 0.19.8's Lion. The one for the CPU also saves an exp_avg_sq, which stays 0.
inline constexpr auto kLionCoefficients =
    listed(number("lr", 1e-3), share("beta1", 0.9), share("beta2", 0.999), number("weight_decay"),
           toggle(kStates8Bit), number(kMin8BitSize, 4096.0));
inline constexpr auto kLionStates = listed(RuleState{.key = "exp_avg", .is_signed = true});
inline constexpr auto kLionKeys = keys("lr", "betas", "weight_decay");

// torch.optim.Muon of torch 2.13 for matrices, and AdamW for the other parameters.
inline constexpr auto kMuonCoefficients =
    listed(number("lr", 1e-3), number("weight_decay", 0.1), share("momentum", 0.95),
           toggle("nesterov", true), number("eps", 1e-7),
           RuleCoefficient{.name = "ns_steps", .fallback = 5.0, .limit = 100.0},
           toggle("match_rms_adamw"), share("beta1", 0.9), share("beta2", 0.999),
           number("adam_eps", 1e-8), number("adam_lr_ratio", 1.0));
inline constexpr auto kMuonStates =
    listed(of_matrices("momentum_buffer"), of_others("exp_avg"), of_others("exp_avg_sq"));
inline constexpr auto kMuonKeys =
    keys("lr", "weight_decay", "momentum", "nesterov", "eps", "ns_steps", "match_rms_adamw",
         "betas", "adam_eps", "adam_lr_ratio");

// DeepSpeed 0.19.8's FusedLamb, with the norms of whole parameters also where ZeRO divides them.
inline constexpr auto kLambCoefficients =
    listed(number("lr", 1e-3), toggle("bias_correction", true), share("beta1", 0.9),
           share("beta2", 0.999), number("eps", 1e-8), toggle("eps_inside_sqrt"),
           number("weight_decay"), number("max_coeff", 10.0), number("min_coeff", 0.01));
inline constexpr auto kLambStates =
    listed(RuleState{.key = "exp_avg"}, RuleState{.key = "exp_avg_sq"});
inline constexpr auto kLambKeys = keys("lr", "bias_correction", "betas", "eps", "weight_decay",
                                       "max_grad_norm=0", "max_coeff", "min_coeff");

// torch.optim.Adafactor of torch 2.13. eps1: torch's default is that of float32.
inline constexpr auto kAdafactorCoefficients =
    listed(number("lr", 1e-2),
           RuleCoefficient{.name = "beta2_decay", .fallback = -0.8, .limit = 0.0, .least = -1e3},
           number("eps1", 1.1920928955078125e-07), number("eps2", 1e-3),
           RuleCoefficient{.name = "d", .fallback = 1.0, .least = 1.0}, number("weight_decay"));
inline constexpr auto kAdafactorStates = listed(of_matrices("row_var", StateShape::rows_kept),
                                                of_matrices("col_var", StateShape::columns_kept),
                                                of_others("variance", StateShape::whole));
inline constexpr auto kAdafactorKeys =
    keys("lr", "beta2_decay", "eps", "d", "weight_decay", "foreach=None", "maximize=False");

// transformers.optimization.Adafactor of transformers 4 and 5. beta1 0: without a first moment.
inline constexpr auto kAdafactorHfCoefficients = listed(
    number("lr", 1e-3), number("eps1", 1e-30), number("eps2", 1e-3), number("clip_threshold", 1.0),
    RuleCoefficient{.name = "decay_rate", .fallback = -0.8, .limit = 0.0, .least = -1e3},
    share("beta1"), number("weight_decay"), toggle("scale_parameter", true),
    toggle("relative_step", true), toggle("warmup_init", false, "relative_step"));
inline constexpr auto kAdafactorHfStates = listed(
    of_matrices("exp_avg_sq_row", StateShape::rows),
    of_matrices("exp_avg_sq_col", StateShape::columns), of_others("exp_avg_sq", StateShape::whole),
    RuleState{.key = "exp_avg", .needs = "beta1", .shape = StateShape::whole});
inline constexpr auto kAdafactorHfKeys =
    keys("lr", "eps", "clip_threshold", "decay_rate", "beta1=None", "weight_decay",
         "scale_parameter", "relative_step", "warmup_init");

// SOAP (arXiv 2409.11321, algorithm 3) for matrices, and AdamW for the other parameters.
inline constexpr auto kSoapCoefficients =
    listed(number("lr", 3e-3), share("beta1", 0.95), share("beta2", 0.95),
           share("shampoo_beta", 0.95), number("eps", 1e-8), number("weight_decay", 1e-2),
           RuleCoefficient{.name = "precondition_frequency", .fallback = 10.0, .least = 1.0},
           number(kLargestSide, 10000.0), number("adam_eps", 1e-8), number("adam_lr_ratio", 1.0));
inline constexpr auto kSoapStates =
    listed(of_matrices("exp_avg", StateShape::whole), of_matrices("exp_avg_sq", StateShape::whole),
           of_matrices("GG_left", StateShape::rows_by_rows),
           of_matrices("GG_right", StateShape::columns_by_columns),
           of_matrices("Q_left", StateShape::rows_by_rows),
           of_matrices("Q_right", StateShape::columns_by_columns), of_others("exp_avg"),
           of_others("exp_avg_sq"));
inline constexpr auto kSoapKeys =
    keys("lr", "betas", "shampoo_beta", "eps", "weight_decay", "precondition_frequency",
         kLargestSide, "adam_eps", "adam_lr_ratio");

// Shampoo (arXiv 1802.09568, algorithm 1) for matrices, and AdamW for the other parameters.
inline constexpr auto kShampooCoefficients =
    listed(number("lr", 1e-1), share("momentum"), number("eps", 1e-4), number("weight_decay"),
           RuleCoefficient{.name = "precondition_frequency", .fallback = 1.0, .least = 1.0},
           number(kLargestSide, 10000.0), share("beta1", 0.9), share("beta2", 0.999),
           number("adam_eps", 1e-8), number("adam_lr_ratio", 1e-2));
inline constexpr auto kShampooStates =
    listed(of_matrices("precond_left", StateShape::rows_by_rows),
           of_matrices("precond_right", StateShape::columns_by_columns),
           of_matrices("inv_precond_left", StateShape::rows_by_rows),
           of_matrices("inv_precond_right", StateShape::columns_by_columns),
           of_matrices("momentum_buffer", StateShape::whole, "momentum"), of_others("exp_avg"),
           of_others("exp_avg_sq"));
inline constexpr auto kShampooKeys =
    keys("lr", "momentum", "eps", "weight_decay", "precondition_frequency", kLargestSide, "betas",
         "adam_eps", "adam_lr_ratio");

}  // namespace rules

inline constexpr auto kOptimizerRules = std::to_array<OptimizerRule>({
    {"adamw", "AdamW", rules::kAdamWCoefficients, rules::kAdamStates, rules::kAdamWKeys},
    {"adam", "Adam", rules::kAdamCoefficients, rules::kAdamStates, rules::kAdamKeys},
    {.name = "sgd",
     .title = "SGD",
     .coefficients = rules::kSgdCoefficients,
     .states = rules::kSgdStates,
     .group_keys = rules::kSgdKeys,
     .counts_steps = false},
    {"lion", "Lion", rules::kLionCoefficients, rules::kLionStates, rules::kLionKeys},
    {"nadam", "NAdam", rules::kNAdamCoefficients, rules::kNAdamStates, rules::kNAdamKeys},
    {"adagrad", "Adagrad", rules::kAdagradCoefficients, rules::kAdagradStates, rules::kAdagradKeys},
    {"rmsprop", "RMSprop", rules::kRmspropCoefficients, rules::kRmspropStates, rules::kRmspropKeys},
    {.name = "lamb",
     .title = "Lamb",
     .coefficients = rules::kLambCoefficients,
     .states = rules::kLambStates,
     .group_keys = rules::kLambKeys,
     .needs_norms = true},
    {"muon", "Muon", rules::kMuonCoefficients, rules::kMuonStates, rules::kMuonKeys, "adamw"},
    {"adafactor", "Adafactor", rules::kAdafactorCoefficients, rules::kAdafactorStates,
     rules::kAdafactorKeys, "adafactor"},
    {"adafactor_transformers", "Adafactor of transformers", rules::kAdafactorHfCoefficients,
     rules::kAdafactorHfStates, rules::kAdafactorHfKeys, "adafactor_transformers"},
    {"soap", "SOAP", rules::kSoapCoefficients, rules::kSoapStates, rules::kSoapKeys, "adamw"},
    {"shampoo", "Shampoo", rules::kShampooCoefficients, rules::kShampooStates, rules::kShampooKeys,
     "adamw"},
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
