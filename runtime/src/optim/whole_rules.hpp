// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"
#include "kernels/update_rules.hpp"
#include "optim/update.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::optim {

using Shape = std::vector<std::int64_t>;

/// A parameter on the rank that owns it.
struct WholeParameter {
  std::string_view name;
  const Shape& shape;
  bool is_matrix;                        ///< RuleScope::matrices
  std::span<float> values;               ///< the direction; a rule replaces it by the update
  std::vector<std::span<float>> states;  ///< in the order of the rule's; empty: it has none
};

/// Numbers of one step of one parameter.
struct WholeStep {
  std::int64_t number = 0;  ///< counts from 1
  double lr = 0.0;
  double weight_decay = 0.0;
  double rms = 0.0;  ///< root of the mean square of the weights; only if WholeRule::needs_rms
};

/// A rule that updates parameters as wholes. The functions depend on nothing else, so that each
/// rank can call them for any parameter; `compute` changes the states.
struct WholeRule {
  /// Time of `compute`, in operations.
  std::function<std::int64_t(const Shape& shape)> cost;
  std::function<void(const WholeParameter& parameter, const WholeStep& step)> compute;
  /// The update of the weights with the result of `compute` as the gradient.
  std::function<kernels::DirectedStep(const Shape& shape, const WholeStep& step)> directed;
  bool needs_rms = false;
};

/// Returns the functions of a rule that has matrices, which compute on the threads of `device`.
WholeRule whole_rule_of(const Rule& rule, device::Device& device);
/// The same of a rule of the program.
WholeRule whole_rule_of(const MatrixRule& rule);
/// The states of a matrix [rows, columns] with a rule of the program.
std::vector<Rule::OwnedState> owned_states(const MatrixRule& rule, const Shape& shape);

}  // namespace acc::optim
