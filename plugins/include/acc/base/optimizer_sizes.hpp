// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/optimizer_rules.hpp"

#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>

/// Sizes of the states of optimizers, for the runtime and for estimates.
namespace acc {

/// Elements of whole parameters that are updated at a time, with all shards, unless a number per
/// rank is given: owners are balanced within this window, and its memory is limited. A larger flat
/// parameter is alone in one.
inline constexpr std::int64_t kWindowNumel = std::int64_t{1} << 25;

/// Returns the shape of a state that lies on the rank that owns a parameter. Empty if the parameter
/// has no such state, and for a square with a longer side than `largest_side`.
inline std::optional<std::vector<std::int64_t>> owned_shape(const RuleState& state,
                                                            const std::vector<std::int64_t>& of,
                                                            bool is_matrix, double largest_side) {
  const bool is_of = state.of == RuleScope::all || (state.of == RuleScope::matrices) == is_matrix;
  if (state.shape == StateShape::sharded || !is_of) {
    return std::nullopt;
  }
  auto shape = state_shape(state.shape, of);
  const bool is_square =
      state.shape == StateShape::rows_by_rows || state.shape == StateShape::columns_by_columns;
  if (is_square && static_cast<double>(shape.back()) > largest_side) {
    return std::nullopt;
  }
  return shape;
}

/// Number of arrays that are divided as a unit is, for estimates: of a unit with parameters of this
/// scope, all: of both; without those of a coefficient that is on or off (AMSGrad).
constexpr std::ptrdiff_t usual_arrays(const OptimizerRule& rule, RuleScope of) {
  const auto counts = [&](const RuleState& state) {
    const bool is_extra = !state.needs.empty() && rule.coefficient(state.needs)->is_switch;
    const bool is_of = of == RuleScope::all || state.of == RuleScope::all || state.of == of;
    return state.shape == StateShape::sharded && !is_extra && is_of;
  };
  std::ptrdiff_t count = 0;
  for (auto state = rule.states.begin(); state != rule.states.end(); ++state) {
    const bool is_again = std::any_of(rule.states.begin(), state, [&](const RuleState& earlier) {
      return counts(earlier) && earlier.key == state->key;
    });
    count += counts(*state) && !is_again ? 1 : 0;
  }
  return count;
}

/// Number of elements of the states that lie on the rank that owns a matrix, for estimates: with
/// the defaults of the coefficients.
inline std::int64_t usual_owned_numel(const OptimizerRule& rule,
                                      const std::vector<std::int64_t>& matrix) {
  const RuleCoefficient* const side = rule.coefficient(kLargestSide);
  std::int64_t sum = 0;
  for (const RuleState& state : rule.states) {
    const bool is_absent = !state.needs.empty() && rule.coefficient(state.needs)->fallback == 0.0;
    const auto shape = owned_shape(state, matrix, true, side == nullptr ? 0.0 : side->fallback);
    if (shape && !is_absent) {
      sum += std::accumulate(shape->begin(), shape->end(), std::int64_t{1}, std::multiplies<>());
    }
  }
  return sum;
}

}  // namespace acc
