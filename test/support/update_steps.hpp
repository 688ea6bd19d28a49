// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/optimizer_rules.hpp"
#include "kernels/update_rules.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace acc::test {

template <typename... Step>
std::vector<kernels::UpdateStep> steps_of(const std::variant<Step...>* /*type*/, std::int64_t step,
                                          bool switches) {
  const auto values_of = [switches](std::string_view rule) {
    kernels::CoefficientValues values;
    for (const RuleCoefficient& each : find_optimizer_rule(rule)->coefficients) {
      const double other = each.fallback != 0.0 ? each.fallback : 0.1;
      values.emplace(each.name, each.is_switch ? (switches ? 1.0 : 0.0) : other);
    }
    values["lr"] = 0.03;
    return values;
  };
  return {Step::of(values_of(Step::kRule), step, 0.37)...};
}

/// A step of each type of UpdateStep, with coefficients that are not 0. step: counts from 1.
/// switches: value of all coefficients that are on or off.
inline std::vector<kernels::UpdateStep> steps_of_all_rules(std::int64_t step,
                                                           bool switches = true) {
  return steps_of(static_cast<const kernels::UpdateStep*>(nullptr), step, switches);
}

inline int states_of(const kernels::UpdateStep& step) {
  return std::visit([](const auto& each) { return each.kStates; }, step);
}

/// Name of the rule, for messages.
inline std::string rule_of(const kernels::UpdateStep& step) {
  return std::visit([](const auto& each) { return std::string(each.kRule); }, step);
}

}  // namespace acc::test
