// SPDX-License-Identifier: Apache-2.0
#include "catalog/group_values.hpp"

#include "acc/base/error.hpp"
#include "acc/base/optimizer_rules.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace acc::checkpoint {

namespace {

/// Returns the value that torch or DeepSpeed gives a coefficient or a key of a group.
double otherwise(const OptimizerRule& rule, const GroupKey& key) {
  const RuleCoefficient* const coefficient = rule.coefficient(key.name);
  return coefficient != nullptr ? coefficient->fallback : key.value == "True" ? 1.0 : 0.0;
}

// torch loads an optimizer by the keys of the live object, so every key of the class must be
// stored, also those that this runtime does not use.
void push(pickle::Writer& writer, const OptimizerRule& rule, const GroupKey& key,
          const std::map<std::string, double>& values) {
  const auto found = values.find(std::string(key.name));
  const double value = found == values.end() ? otherwise(rule, key) : found->second;
  const RuleCoefficient* const coefficient = rule.coefficient(key.name);
  const bool is_switch =
      coefficient != nullptr ? coefficient->is_switch : key.value == "True" || key.value == "False";
  if (key.name == "betas") {
    writer.begin_tuple();
    for (const GroupKey beta : {GroupKey{"beta1"}, GroupKey{"beta2"}}) {
      const auto given = values.find(std::string(beta.name));
      writer.real(given == values.end() ? otherwise(rule, beta) : given->second);
    }
    writer.end_tuple();
  } else if (key.value == "None" && found == values.end()) {
    writer.none();
  } else if (is_switch || key.value == "None") {
    writer.boolean(value != 0.0);
  } else {
    writer.real(value);
  }
}

void push_names(pickle::Writer& writer, const std::vector<std::string>& names) {
  writer.begin_list();
  for (const std::string& name : names) {
    writer.text(name);
  }
  writer.end_list();
}

void read_betas(const pickle::Node& node, StoredGroup& group) {
  const std::vector<pickle::Node> betas = node.items();
  if (betas.size() != 2) {
    node.fail("two numbers");
  }
  group.hyper_parameters["beta1"] = betas[0].real();
  group.hyper_parameters["beta2"] = betas[1].real();
}

/// Reads names of parameters, or the numbers that plain torch has in their place.
void read_names(const pickle::Node& node, StoredGroup& group) {
  for (const pickle::Node& name : node.items()) {
    if (name.value().is(pickle::Value::Kind::integer)) {
      group.numbers.push_back(std::to_string(name.integer()));
    } else {
      group.parameters.push_back(name.text());
    }
  }
}

bool is_known(std::string_view key) {
  return std::ranges::any_of(kOptimizerRules, [key](const OptimizerRule& rule) {
    return std::ranges::find(rule.group_keys, key, &GroupKey::name) != rule.group_keys.end();
  });
}

/// True if a group has a coefficient of an optimizer that is not one of the rule.
bool has_other_coefficient(const OptimizerRule& rule, const StoredGroup& group) {
  return std::ranges::any_of(group.hyper_parameters, [&rule](const auto& value) {
    return rule.coefficient(value.first) == nullptr &&
           std::ranges::any_of(kOptimizerRules, [&value](const OptimizerRule& other) {
             return other.coefficient(value.first) != nullptr;
           });
  });
}

/// True if each group has all coefficients of the rule.
bool has_all_coefficients(const OptimizerRule& rule, const std::vector<StoredGroup>& groups) {
  return !groups.empty() && std::ranges::all_of(groups, [&rule](const StoredGroup& group) {
    return std::ranges::all_of(rule.coefficients, [&group](const RuleCoefficient& each) {
      return group.hyper_parameters.contains(std::string(each.name));
    });
  });
}

}  // namespace

void for_each_group_value(
    const std::string& optimizer, const StoredGroup& group,
    const std::function<void(const std::string& key, const PushValue& push)>& visit) {
  // Keys that only this run has ("initial_lr") follow those of the class.
  const std::map<std::string, double>& values = group.hyper_parameters;
  std::set<std::string, std::less<>> written = {"beta1", "beta2"};
  const OptimizerRule* const rule = find_optimizer_rule(optimizer);
  if (rule == nullptr && optimizer != "program") {  // a rule of the program, which keeps its values
    throw Error(Errc::not_supported,
                "cannot write parameter groups of the optimizer '" + optimizer + "': only " +
                    all_optimizer_rules(&OptimizerRule::name) + " and program are supported");
  }
  for (const GroupKey& key : rule != nullptr ? rule->group_keys : std::span<const GroupKey>()) {
    visit(std::string(key.name), [&](pickle::Writer& writer) { push(writer, *rule, key, values); });
    written.emplace(key.name);
  }
  for (const auto& [key, value] : values) {
    if (!written.contains(key)) {
      visit(key, [number = value](pickle::Writer& writer) { writer.real(number); });
    }
  }
  visit("params", [&group](pickle::Writer& writer) { push_names(writer, group.parameters); });
}

void read_group_key(const std::string& key, const pickle::Node& node, StoredGroup& group) {
  if (node.is_none()) {
    return;
  }
  if (key == "params") {
    read_names(node, group);
  } else if (key == "param_names") {
    for (const pickle::Node& name : node.items()) {
      group.param_names.push_back(name.text());
    }
  } else if (key == "betas") {
    read_betas(node, group);
  } else if (node.is_number()) {
    group.hyper_parameters[key] = node.real();
  } else if (is_known(key)) {
    node.fail("a number, True or False");
  }
  // Other keys ("name") were added by the program and are not settings of the optimizer.
}

// Files do not name their optimizer. Several have the same states: DeepSpeed's Adam and its Lion on
// the CPU, for example. The coefficients of their groups differ. torch's Adam differs from AdamW
// only in the value of one key.
std::string class_of(const std::set<std::string>& kinds, const std::vector<StoredGroup>& groups) {
  const OptimizerRule* best = nullptr;
  std::pair<bool, std::size_t> best_fit;
  for (const OptimizerRule& rule : kOptimizerRules) {
    const bool has_states = std::ranges::all_of(rule.states, [&kinds](const RuleState& state) {
      return kinds.contains(std::string(state.key));
    });
    const bool is_other = std::ranges::any_of(
        groups, [&rule](const StoredGroup& group) { return has_other_coefficient(rule, group); });
    const std::pair fit(has_all_coefficients(rule, groups), rule.states.size());
    if (has_states && !is_other && (best == nullptr || fit > best_fit)) {
      best = &rule;
      best_fit = fit;
    }
  }
  return best == nullptr ? "" : std::string(best->name);
}

std::string optimizer_of(const std::set<std::string>& kinds,
                         const std::vector<StoredGroup>& groups) {
  const bool couples = std::ranges::any_of(groups, [](const StoredGroup& group) {
    const auto key = group.hyper_parameters.find("decoupled_weight_decay");
    return key != group.hyper_parameters.end() && key->second == 0.0;
  });
  return couples ? "" : class_of(kinds, groups);
}

bool counts_steps(const std::string& optimizer) {
  const OptimizerRule* const rule = find_optimizer_rule(optimizer);
  return rule == nullptr || rule->counts_steps;
}

}  // namespace acc::checkpoint
