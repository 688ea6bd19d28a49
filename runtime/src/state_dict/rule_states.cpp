// SPDX-License-Identifier: Apache-2.0
#include "state_dict/rule_states.hpp"

#include "acc/base/error.hpp"
#include "model/model_state.hpp"
#include "optim/optimizer_state.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <variant>

namespace acc::state_dict {

namespace {

/// With the number of the model behind it.
constexpr const char* kRulePrefix = "acc.rule.";

}  // namespace

void add_values_of_shards(const ProgramState& from, ProgramState& values) {
  for (const auto& each : from) {
    if (each.first.starts_with(kRulePrefix) || each.first == "acc.torch_optimizer") {
      values.insert(each);
    }
  }
}

SavedState with_rule_states(std::span<const Part> parts, SavedState values) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ProgramRule* const rule = parts[i].optimizer->program_rule();
    if (rule != nullptr && rule->state) {
      values.of_rank[kRulePrefix + std::to_string(i)] = rule->state();
    }
  }
  return values;
}

void load_rule_states(std::span<const Part> parts, SavedState& values, const std::string& source) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ProgramRule* const rule = parts[i].optimizer->program_rule();
    if (rule == nullptr || !rule->load_state) {
      continue;
    }
    const auto found = values.of_rank.extract(kRulePrefix + std::to_string(i));
    const auto* const state = found ? std::get_if<std::string>(&found.mapped()) : nullptr;
    if (state == nullptr) {
      throw Error(
          Errc::config,
          fmt::format("{} has no state of the optimizer of the program for rank {}: load its "
                      "weights alone with load_weights",
                      source, parts[i].model->context().groups.world->rank()));
    }
    rule->load_state(*state);
  }
}

}  // namespace acc::state_dict
