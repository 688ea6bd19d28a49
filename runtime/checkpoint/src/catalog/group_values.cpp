// SPDX-License-Identifier: Apache-2.0
#include "catalog/group_values.hpp"

#include "acc/base/error.hpp"
#include "acc/base/optimizer_rules.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace acc::checkpoint {

namespace {

/// Names of the two coefficients of a key that holds a pair; nothing for any other.
using Pair = std::array<std::string_view, 2>;
std::optional<Pair> pair_of(const OptimizerRule& rule, std::string_view key) {
  if (key == "betas") {
    return Pair{"beta1", "beta2"};
  }
  return key == "eps" && rule.coefficient("eps1") != nullptr ? std::optional(Pair{"eps1", "eps2"})
                                                             : std::nullopt;
}

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
  const bool is_switch = coefficient != nullptr
                             ? coefficient->is_switch && key.value != "None"
                             : key.value == "True" || key.value == "False" || key.value == "None";
  if (const auto pair = pair_of(rule, key.name)) {
    writer.begin_tuple();
    for (const std::string_view name : *pair) {
      const auto given = values.find(std::string(name));
      writer.real(given == values.end() ? otherwise(rule, {name}) : given->second);
    }
    writer.end_tuple();
  } else if (key.value == "None" &&
             (found == values.end() || (coefficient != nullptr && value == 0.0))) {
    writer.none();
  } else if (is_switch) {
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

/// Reads "betas", or "eps" of a pair. torch's Adafactor has None for the default.
void read_pair(std::string_view name, const pickle::Node& node, StoredGroup& group) {
  const std::vector<pickle::Node> numbers = node.items();
  if (numbers.size() != 2) {
    node.refuse("two numbers");
  }
  for (std::size_t i = 0; i < 2; ++i) {
    if (!numbers[i].is_none()) {
      group.hyper_parameters[fmt::format("{}{}", name, i + 1)] = numbers[i].real();
    }
  }
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

bool has_key(const OptimizerRule& rule, std::string_view key) {
  return rule.coefficient(key) != nullptr ||
         std::ranges::find(rule.group_keys, key, &GroupKey::name) != rule.group_keys.end();
}

bool is_known(std::string_view key) {
  return std::ranges::any_of(kOptimizerRules,
                             [key](const OptimizerRule& rule) { return has_key(rule, key); });
}

/// Pushes a plain value. Returns false if it has a part that is not plain.
bool push_plain(pickle::Writer& writer, const pickle::Value& value) {
  using Kind = pickle::Value::Kind;
  const auto push_items = [&writer](pickle::Value::Items items) {
    return std::ranges::all_of(
        items, [&writer](const pickle::Value* item) { return push_plain(writer, *item); });
  };
  switch (value.kind) {
    case Kind::none: writer.none(); return true;
    case Kind::boolean: writer.boolean(value.integer != 0); return true;
    case Kind::integer: writer.integer(value.integer); return true;
    case Kind::real: writer.real(value.real); return true;
    case Kind::text: writer.text(value.text); return true;
    case Kind::tuple: writer.begin_tuple(); break;
    case Kind::list: writer.begin_list(); break;
    case Kind::dict: writer.begin_dict(); break;
    default: return false;
  }
  const bool is_plain = push_items(value.items);
  value.is(Kind::tuple)  ? writer.end_tuple()
  : value.is(Kind::list) ? writer.end_list()
                         : writer.end_dict();
  return is_plain;
}

/// Keeps a value that the program has added. Returns false if it is not plain.
bool keep_other(const std::string& key, const pickle::Node& node, StoredGroup& group) {
  pickle::Writer writer;
  static_cast<void>(writer.take());  // what begins a pickle
  const bool is_plain = push_plain(writer, node.value());
  if (is_plain) {
    group.others[key] = writer.take();
  }
  return is_plain;
}

/// True if a group belongs to another optimizer: it has a coefficient that the rule does not know,
/// or the other way of weight decay, by which alone the groups of torch's Adam and AdamW differ.
bool is_of_another(const OptimizerRule& rule, const StoredGroup& group) {
  return std::ranges::any_of(group.hyper_parameters, [&rule](const auto& value) {
    const std::string& name = value.first;
    const auto key = std::ranges::find(rule.group_keys, name, &GroupKey::name);
    if (name == "decoupled_weight_decay" && key != rule.group_keys.end() && !key->value.empty()) {
      return (key->value == "True") != (value.second != 0.0);
    }
    return !has_key(rule, name) &&
           std::ranges::any_of(kOptimizerRules, [&name](const OptimizerRule& other) {
             return other.coefficient(name) != nullptr;
           });
  });
}

/// True if each group has all coefficients that the optimizer's class stores.
bool has_all_coefficients(const OptimizerRule& rule, const std::vector<StoredGroup>& groups) {
  return !groups.empty() && std::ranges::all_of(groups, [&rule](const StoredGroup& group) {
    return std::ranges::all_of(rule.group_keys, [&](const GroupKey& key) {
      const auto pair = pair_of(rule, key.name);
      const std::string name(pair ? pair->back() : key.name);
      return !key.value.empty() || group.hyper_parameters.contains(name);
    });
  });
}

/// True if the optimizer of these groups has the state.
bool needs_state(const OptimizerRule& rule, const RuleState& state,
                 const std::vector<StoredGroup>& groups) {
  return state.needs.empty() || std::ranges::any_of(groups, [&](const StoredGroup& group) {
           const auto value = group.hyper_parameters.find(std::string(state.needs));
           return value != group.hyper_parameters.end()
                      ? value->second != 0.0
                      : rule.coefficient(state.needs)->fallback != 0.0;
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
    const RuleCoefficient* const other = rule != nullptr ? rule->coefficient(key) : nullptr;
    const bool is_default = other != nullptr && other->fallback == value;
    if (!written.contains(key) && !is_default && !group.others.contains(key)) {
      visit(key, [number = value](pickle::Writer& writer) { writer.real(number); });
    }
  }
  for (const auto& [key, value] : group.others) {
    visit(key, [&opcodes = value](pickle::Writer& writer) { writer.opcodes(opcodes); });
  }
  if (!group.param_names.empty()) {
    visit("param_names",
          [&group](pickle::Writer& writer) { push_names(writer, group.param_names); });
  }
  visit("params", [&group](pickle::Writer& writer) { push_names(writer, group.parameters); });
}

bool read_group_key(const std::string& key, const pickle::Node& node, StoredGroup& group) {
  if (node.is_none() && (is_known(key) || key == "params" || key == "param_names")) {
    return true;
  }
  if (key == "params") {
    read_names(node, group);
  } else if (key == "param_names") {
    for (const pickle::Node& name : node.items()) {
      group.param_names.push_back(name.text());
    }
  } else if (key == "betas") {
    read_pair("beta", node, group);
  } else if (key == "eps" && !node.is_number()) {
    read_pair("eps", node, group);
  } else if (node.is_number()) {
    group.hyper_parameters[key] = node.real();
  } else if (is_known(key)) {
    node.refuse("a number, True or False");
  }
  const bool is_added = !is_known(key) && key != "params" && key != "param_names";
  return !is_added || node.value().is(pickle::Value::Kind::real) || keep_other(key, node, group);
}

// Files do not name their optimizer. Several have the same states: DeepSpeed's Adam and its Lion on
// the CPU, for example. The coefficients of their groups differ.
std::string class_of(const std::set<std::string>& kinds, const std::vector<StoredGroup>& groups) {
  const OptimizerRule* best = nullptr;
  std::pair<bool, std::ptrdiff_t> best_fit;
  for (const OptimizerRule& rule : kOptimizerRules) {
    const auto is_stored = [&kinds](const RuleState& state) {
      return kinds.contains(std::string(state.key));
    };
    const bool has_states = std::ranges::all_of(rule.states, [&](const RuleState& state) {
      return is_stored(state) || !needs_state(rule, state, groups);
    });
    const bool is_other = std::ranges::any_of(
        groups, [&rule](const StoredGroup& group) { return is_of_another(rule, group); });
    const std::pair fit(has_all_coefficients(rule, groups),
                        std::ranges::count_if(rule.states, is_stored));
    if (has_states && !is_other && fit.second > 0 && (best == nullptr || fit > best_fit)) {
      best = &rule;
      best_fit = fit;
    }
  }
  return best == nullptr ? "" : std::string(best->name);
}

bool counts_steps(const std::string& optimizer) {
  const OptimizerRule* const rule = find_optimizer_rule(optimizer);
  return rule == nullptr || rule->counts_steps;
}

}  // namespace acc::checkpoint
