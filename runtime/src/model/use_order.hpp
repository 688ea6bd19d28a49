// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/unit_state.hpp"
#include "sharding/context.hpp"

#include <functional>
#include <utility>
#include <vector>

namespace acc::detail {

/// The uses of units since the last step, in their order. Gathers and reductions of the ranks are
/// matched by their order, so ranks that use units of the same size in different orders would
/// exchange their values.
class UseOrder {
 public:
  enum class Step { begins_forward, begins_backward, ends_backward };

  void add(Step step, const UnitState& unit) { uses_.emplace_back(step, &unit); }
  void clear() { uses_.clear(); }
  /// Throws Error(invalid_argument) on every rank if the orders of the ranks differ. number_of: the
  /// same number for a unit on all ranks. Collective.
  void check(const sharding::Context& context,
             const std::function<std::ptrdiff_t(const UnitState&)>& number_of) const;

 private:
  std::vector<std::pair<Step, const UnitState*>> uses_;
};

}  // namespace acc::detail
