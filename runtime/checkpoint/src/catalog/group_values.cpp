// SPDX-License-Identifier: Apache-2.0
#include "catalog/group_values.hpp"

#include "acc/base/error.hpp"

#include <array>
#include <set>
#include <span>
#include <string_view>

namespace acc::checkpoint {

namespace {

/// A key of an optimizer class's parameter groups, in the class's order, and its default.
struct Setting {
  enum class Kind { real, betas, boolean, none };
  std::string_view key;
  Kind kind;
  double otherwise = 0.0;
};
using Kind = Setting::Kind;

// torch loads an optimizer by the keys of the live object, so every key of the class must be
// stored, also those that this runtime does not use. The lists are those of torch 2.13's AdamW and
// SGD.
constexpr auto kAdamW = std::to_array<Setting>({
    {"lr", Kind::real, 1e-3},
    {"betas", Kind::betas},
    {"eps", Kind::real, 1e-8},
    {"weight_decay", Kind::real, 1e-2},
    {"amsgrad", Kind::boolean},
    {"maximize", Kind::boolean},
    {"foreach", Kind::none},
    {"capturable", Kind::boolean},
    {"differentiable", Kind::boolean},
    {"fused", Kind::none},
    {"decoupled_weight_decay", Kind::boolean, 1.0},
});
constexpr auto kSgd = std::to_array<Setting>({
    {"lr", Kind::real, 1e-3},
    {"momentum", Kind::real},
    {"dampening", Kind::real},
    {"weight_decay", Kind::real},
    {"nesterov", Kind::boolean},
    {"maximize", Kind::boolean},
    {"foreach", Kind::none},
    {"differentiable", Kind::boolean},
    {"fused", Kind::none},
});

std::span<const Setting> settings_of(const std::string& optimizer) {
  if (optimizer == "adamw") {
    return kAdamW;
  }
  if (optimizer == "sgd") {
    return kSgd;
  }
  if (optimizer == "program") {  // an update rule of the program, which keeps its settings
    return {};
  }
  throw Error(Errc::config, "cannot write parameter groups of the optimizer '" + optimizer +
                                "': only adamw, sgd and program are supported");
}

void push(pickle::Writer& writer, const Setting& setting,
          const std::map<std::string, double>& values) {
  const auto value = [&values](std::string_view key, double otherwise) {
    const auto found = values.find(std::string(key));
    return found == values.end() ? otherwise : found->second;
  };
  switch (setting.kind) {
    case Kind::real: writer.real(value(setting.key, setting.otherwise)); break;
    case Kind::betas:
      writer.begin_tuple().real(value("beta1", 0.9)).real(value("beta2", 0.999)).end_tuple();
      break;
    case Kind::boolean: writer.boolean(value(setting.key, setting.otherwise) != 0.0); break;
    case Kind::none:
      values.contains(std::string(setting.key)) ? writer.boolean(value(setting.key, 0.0) != 0.0)
                                                : writer.none();
      break;
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
  for (const auto settings : {std::span<const Setting>(kAdamW), std::span<const Setting>(kSgd)}) {
    for (const Setting& setting : settings) {
      if (setting.key == key) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

void for_each_group_value(
    const std::string& optimizer, const StoredGroup& group,
    const std::function<void(const std::string& key, const PushValue& push)>& visit) {
  // Keys that only this run has ("initial_lr") follow those of the class.
  const std::map<std::string, double>& values = group.hyper_parameters;
  std::set<std::string, std::less<>> written = {"beta1", "beta2"};
  for (const Setting& setting : settings_of(optimizer)) {
    visit(std::string(setting.key), [&](pickle::Writer& writer) { push(writer, setting, values); });
    written.emplace(setting.key);
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

}  // namespace acc::checkpoint
