// SPDX-License-Identifier: Apache-2.0
#include "optim/from_settings.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/settings/settings.hpp"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::optim {
namespace {

using settings::OptimizerChoice;
using settings::ScheduleChoice;

constexpr std::string_view kMuon = "muon";

/// Parses "name=number,name=number". key: for messages.
std::map<std::string, double> numbers_in(const std::string& text, const std::string& key) {
  std::map<std::string, double> numbers;
  for (const std::string_view each : split(text, ',')) {
    const std::size_t end = std::min(each.find('='), each.size());
    const auto number = settings::parse_real(each.substr(std::min(end + 1, each.size())));
    if (!each.empty() && !number) {
      throw Error(Errc::config, key + ": expected name=number, found '" + std::string(each) + "'");
    }
    if (number) {
      numbers.emplace(each.substr(0, end), *number);
    }
  }
  return numbers;
}

/// Returns the values that the configuration gives, by the names of coefficients.
std::map<std::string, double> given_values(const OptimizerChoice& choice) {
  if (!choice.betas.empty() && choice.betas.size() != 2) {
    throw Error(Errc::config, "optimizer.params.betas: expected two numbers, found " +
                                  std::to_string(choice.betas.size()));
  }
  std::map<std::string, double> given = numbers_in(choice.values, "optimizer_values");
  for (const auto& [name, value] : {std::pair{"lr", choice.lr},
                                    {"eps", choice.eps},
                                    {"weight_decay", choice.weight_decay},
                                    {"momentum", choice.momentum}}) {
    if (value) {
      given.emplace(name, *value);
    }
  }
  for (std::size_t i = 0; i < choice.betas.size(); ++i) {
    given.emplace("beta" + std::to_string(i + 1), choice.betas[i]);
  }
  return given;
}

double value_or(const std::map<std::string, double>& values, const std::string& name,
                double fallback) {
  const auto found = values.find(name);
  return found == values.end() ? fallback : found->second;
}

/// The rule of DeepSpeed's Muon. given: its parameters; others are coefficients of the rule.
/// Defaults and rates are those of MuonWithAuxAdam and _muon_param_groups of DeepSpeed 0.19.8.
NamedRule muon_of(std::map<std::string, double> given) {
  given["lr"] = value_or(given, "muon_lr", value_or(given, "lr", 0.02));
  given.emplace("weight_decay", 0.0);
  given.emplace("beta2", 0.95);
  given.emplace("adam_eps", value_or(given, "eps", 1e-10));
  for (const char* const name : {"muon_lr", "adam_lr", "eps"}) {
    given.erase(name);
  }
  return {"muon", std::move(given)};
}

WarmupType warmup_type_of(const std::string& text) {
  if (text == "log" || text == "linear") {
    return text == "log" ? WarmupType::log : WarmupType::linear;
  }
  throw Error(Errc::config,
              "scheduler.params.warmup_type: expected log or linear, found '" + text + "'");
}

std::int64_t total_steps_of(const ScheduleChoice& choice) {
  if (!choice.total_num_steps) {
    throw Error(Errc::config, "scheduler.type " + choice.type +
                                  " needs scheduler.params.total_num_steps, which is not given");
  }
  return *choice.total_num_steps;
}

WarmupLr warmup_of(const ScheduleChoice& choice) {
  WarmupLr settings{.max_lr = choice.warmup_max_lr, .type = warmup_type_of(choice.warmup_type)};
  settings.min_lr = choice.warmup_min_lr.value_or(settings.min_lr);
  settings.warmup_steps = choice.warmup_num_steps.value_or(settings.warmup_steps);
  return settings;
}

WarmupCosineLr cosine_of(const ScheduleChoice& choice) {
  WarmupCosineLr settings{.total_steps = total_steps_of(choice),
                          .type = warmup_type_of(choice.warmup_type)};
  settings.warmup_min_ratio = choice.warmup_min_ratio.value_or(settings.warmup_min_ratio);
  settings.warmup_steps = choice.warmup_num_steps.value_or(settings.warmup_steps);
  settings.cos_min_ratio = choice.cos_min_ratio.value_or(settings.cos_min_ratio);
  return settings;
}

}  // namespace

OptimizerSettings optimizer_of(const OptimizerChoice& choice) {
  const std::string type = lower(choice.type);
  if (type.empty()) {
    throw Error(Errc::config,
                "the configuration chooses no optimizer (optimizer.type of a DeepSpeed file)");
  }
  const OptimizerRule* const rule = find_optimizer_rule(type);
  if (rule == nullptr) {
    throw Error(Errc::not_supported, "optimizer.type " + choice.type +
                                         " is not in this version of libacc_runtime (use " +
                                         all_optimizer_rules(&OptimizerRule::title) + ")");
  }
  if (type == kMuon) {
    return muon_of(given_values(choice));
  }
  if (rule->has_matrices() && !rule->has_wholes_only()) {
    throw Error(Errc::not_supported,
                "optimizer.type " + choice.type +
                    ": a file does not say which parameters it updates as matrices: name the "
                    "others in parameter groups in the program, with acc::NamedRule{\"" +
                    std::string(rule->name) + "\", ...} or acc." + std::string(rule->title));
  }
  return NamedRule{std::string(rule->name), given_values(choice)};
}

std::vector<ParameterGroup> groups_of(const OptimizerChoice& choice,
                                      std::span<const sharding::ParameterRecord> trained) {
  if (lower(choice.type) != kMuon) {
    return {};
  }
  const auto given = given_values(choice);
  ParameterGroup adam{.name = "adam",
                      .lr = value_or(given, "adam_lr", value_or(given, "lr", 3e-4)),
                      .matrices = false};
  for (const sharding::ParameterRecord& each : trained) {
    const std::string name = lower(each.name);
    const bool is_excluded =
        name.find("embed") != std::string::npos || name.find("lm_head") != std::string::npos;
    if (each.shape.size() < 2 || is_excluded) {
      adam.parameters.push_back(each.name);
    } else if (each.shape.size() > 2) {
      throw Error(Errc::not_supported,
                  "optimizer.type Muon: DeepSpeed updates parameter '" + each.name + "' with " +
                      std::to_string(each.shape.size()) +
                      " dimensions as matrices, libacc_runtime those with two only");
    }
  }
  return adam.parameters.empty() ? std::vector<ParameterGroup>{} : std::vector{std::move(adam)};
}

StepSchedule schedule_of(const ScheduleChoice& choice) {
  const std::string& type = choice.type;
  if (type.empty()) {
    return {};
  }
  if (type == "WarmupLR") {
    return {warmup_lr(warmup_of(choice))};
  }
  if (type == "WarmupDecayLR") {
    return {warmup_decay_lr(warmup_of(choice), total_steps_of(choice))};
  }
  if (type == "WarmupCosineLR") {
    return {warmup_cosine_lr(cosine_of(choice))};
  }
  if (type == "OneCycle" || type == "LRRangeTest") {
    return acc::schedule_of({type, numbers_in(choice.values, "scheduler_values")});
  }
  throw Error(Errc::not_supported,
              "scheduler.type " + type +
                  " is not in this version of libacc_runtime (use WarmupLR, WarmupDecayLR, "
                  "WarmupCosineLR, OneCycle or LRRangeTest)");
}

}  // namespace acc::optim
