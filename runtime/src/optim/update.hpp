// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/optimizer_rules.hpp"
#include "acc/runtime/optimizers.hpp"
#include "device/device.hpp"
#include "kernels/kernels.hpp"
#include "sharding/flat_parameter.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace acc::optim {

using OptimizerSettings = std::variant<NamedRule, ProgramRule, MatrixRule>;

NamedRule named(const AdamW& settings);
NamedRule named(const Sgd& settings);

/// A rule of the runtime with the values of all its coefficients.
class Rule {
 public:
  /// Throws Error(invalid_argument) for an unknown name or coefficient, and for a value that is out
  /// of range. Rates are checked by GroupTable.
  explicit Rule(const NamedRule& settings);

  [[nodiscard]] const OptimizerRule& facts() const noexcept { return *facts_; }
  [[nodiscard]] const kernels::CoefficientValues& coefficients() const noexcept { return values_; }
  [[nodiscard]] double operator[](std::string_view name) const {
    return values_.find(name)->second;
  }
  /// Keys of the states that the rule has with these coefficients and that are divided as the
  /// parameters are, of all parameters and of those in one scope.
  [[nodiscard]] std::vector<std::string> states() const;
  [[nodiscard]] std::vector<std::string> states(RuleScope of) const;
  /// A state that lies on the rank that owns a parameter.
  struct OwnedState {
    std::string key;
    std::vector<std::int64_t> shape;
    bool exists = false;  ///< false: this parameter has none
  };
  /// All such states, of a parameter of this shape. is_matrix: RuleScope::matrices.
  [[nodiscard]] std::vector<OwnedState> owned_states(const std::vector<std::int64_t>& shape,
                                                     bool is_matrix) const;
  /// True if the rule needs the norms of whole parameters.
  [[nodiscard]] bool needs_norms() const noexcept { return facts_->needs_norms; }

  /// Returns the update of step number `step`, which counts from 1, with the rates of a group, of
  /// parameters that are updated element by element. grad_scale: factor on the gradient (loss
  /// scale, clipping). betas: in place of the rule's, if it has some.
  [[nodiscard]] kernels::UpdateStep step(
      double lr, double weight_decay, std::int64_t step, double grad_scale,
      const std::optional<std::array<double, 2>>& betas = {}) const;
  /// The same of parameters that are updated as a whole: computes the direction, in memory that
  /// holds the weights, or zeros for a rule of whole parameters.
  [[nodiscard]] kernels::UpdateStep direction(
      double weight_decay, std::int64_t step, double grad_scale,
      const std::optional<std::array<double, 2>>& betas = {}) const;
  /// The update of a parameter along a direction whose length depends on the norms of both (LAMB).
  [[nodiscard]] kernels::UpdateStep directed_by_norms(
      double lr, std::int64_t step, double weight_norm, double direction_norm,
      const std::optional<std::array<double, 2>>& betas = {}) const;

 private:
  [[nodiscard]] bool has_state(const RuleState& state) const;
  [[nodiscard]] kernels::CoefficientValues values_with(
      double weight_decay, const std::optional<std::array<double, 2>>& betas) const;

  const OptimizerRule* facts_;
  kernels::CoefficientValues values_;
};

/// The step that writes the gradient, times grad_scale, to memory that holds zeros.
kernels::UpdateStep gradient_direction(double grad_scale);

/// Ranges of a shard that are updated with the rates of one group.
struct GroupRanges {
  std::size_t group;
  std::vector<device::UpdateRange> ranges;
};

/// The part of a shard that the optimizer updates at a time (sub_group_size), in memory order.
using Tile = std::vector<GroupRanges>;

/// Divides the part of `flat` that this rank owns into tiles. tile_numel: largest number of
/// elements of a tile, rounded down to a multiple of `sharding::kAlignment` but at least that; 0:
/// one tile. groups: group number of each parameter. left_out: true for parameters that are updated
/// as a whole. They, and gaps between parameters, are in no range.
std::vector<Tile> plan_updates(const sharding::FlatParameter& flat,
                               std::span<const std::size_t> groups, std::int64_t tile_numel,
                               const std::vector<bool>& left_out);

}  // namespace acc::optim
