// SPDX-License-Identifier: Apache-2.0
#include "optim/update.hpp"

#include "acc/base/error.hpp"
#include "acc/base/optimizer_sizes.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace acc::optim {

NamedRule named(const AdamW& settings) {
  return {"adamw",
          {{"lr", settings.lr},
           {"beta1", settings.beta1},
           {"beta2", settings.beta2},
           {"eps", settings.eps},
           {"weight_decay", settings.weight_decay}}};
}

NamedRule named(const Sgd& settings) {
  return {"sgd",
          {{"lr", settings.lr},
           {"momentum", settings.momentum},
           {"nesterov", settings.nesterov ? 1.0 : 0.0},
           {"weight_decay", settings.weight_decay}}};
}

namespace {

bool is_rate(std::string_view name) {
  return name == "lr" || name == "weight_decay";
}

/// Returns the step of the type that is made for this rule and these coefficients, if there is one.
template <typename... Step>
std::optional<kernels::UpdateStep> step_of(const OptimizerRule& rule,
                                           const std::variant<Step...>* /*type*/,
                                           const kernels::CoefficientValues& values,
                                           std::int64_t step, double grad_scale) {
  std::optional<kernels::UpdateStep> made;
  const auto try_type = [&]<typename Each>(const Each* /*type*/) {
    if (!made && rule.name == Each::kRule && Each::fits(values)) {
      made = Each::of(values, step, grad_scale);
    }
  };
  (try_type(static_cast<const Step*>(nullptr)), ...);
  return made;
}

}  // namespace

Rule::Rule(const NamedRule& settings) : facts_(find_optimizer_rule(settings.name)) {
  if (facts_ == nullptr) {
    throw Error(Errc::invalid_argument,
                fmt::format("no optimizer is named '{}'; there are {}", settings.name,
                            all_optimizer_rules(&OptimizerRule::name)));
  }
  for (const RuleCoefficient& each : facts_->coefficients) {
    values_.emplace(each.name, each.fallback);
  }
  for (const auto& [name, value] : settings.coefficients) {
    const auto found = values_.find(name);
    if (found == values_.end()) {
      std::vector<std::string> known;
      std::ranges::transform(values_, std::back_inserter(known),
                             [](const auto& each) { return each.first; });
      throw Error(Errc::invalid_argument, fmt::format("{} has no coefficient '{}'; it has {}",
                                                      facts_->title, name, fmt::join(known, ", ")));
    }
    found->second = value;
  }
  for (const RuleCoefficient& each : facts_->coefficients) {
    const double value = (*this)[each.name];
    if (!is_rate(each.name) && !(value >= each.least && value < each.limit)) {  // or NaN
      throw Error(Errc::invalid_argument,
                  fmt::format("{}: expected a number from {} to {} (excluded), found {}", each.name,
                              each.least, each.limit, value));
    }
    if (each.is_switch && value != 0.0 && value != 1.0) {
      throw Error(Errc::invalid_argument,
                  fmt::format("{}: expected 0 or 1, found {}", each.name, value));
    }
    if (!each.needs.empty() && value != 0.0 && (*this)[each.needs] == 0.0) {
      throw Error(Errc::invalid_argument,
                  fmt::format("{} needs a {} above 0", each.name, each.needs));
    }
  }
}

std::vector<std::string> Rule::states() const {
  return states(RuleScope::all);
}

std::vector<std::string> Rule::states(RuleScope of) const {
  std::vector<std::string> keys;
  for (const RuleState& each : facts_->states) {
    const bool is_in = of == RuleScope::all || each.of == RuleScope::all || each.of == of;
    if (each.shape == StateShape::sharded && is_in && has_state(each)) {
      keys.emplace_back(each.key);
    }
  }
  return keys;
}

bool Rule::has_state(const RuleState& state) const {
  return state.needs.empty() || (*this)[state.needs] != 0.0;
}

std::vector<Rule::OwnedState> Rule::owned_states(const std::vector<std::int64_t>& shape,
                                                 bool is_matrix) const {
  const bool has_side = facts_->coefficient(kLargestSide) != nullptr;
  const double largest_side = has_side ? (*this)[kLargestSide] : 0.0;
  std::vector<OwnedState> all;
  for (const RuleState& each : facts_->states) {
    if (each.shape == StateShape::sharded || !has_state(each)) {
      continue;
    }
    const auto own = owned_shape(each, shape, is_matrix, largest_side);
    OwnedState state{std::string(each.key), own.value_or(std::vector<std::int64_t>()),
                     own.has_value()};
    all.push_back(std::move(state));
  }
  return all;
}

namespace {

constexpr const kernels::UpdateStep* kAnyStep = nullptr;

}  // namespace

kernels::CoefficientValues Rule::values_with(
    double weight_decay, const std::optional<std::array<double, 2>>& betas) const {
  kernels::CoefficientValues own = values_;
  own["weight_decay"] = weight_decay;
  if (betas && own.contains("beta1")) {
    own["beta1"] = (*betas)[0];
    own["beta2"] = (*betas)[1];
  }
  return own;
}

kernels::UpdateStep Rule::step(double lr, double weight_decay, std::int64_t step, double grad_scale,
                               const std::optional<std::array<double, 2>>& betas) const {
  kernels::CoefficientValues own = values_with(weight_decay, betas);
  own["lr"] = lr;
  if (!facts_->has_matrices()) {
    return step_of(*facts_, kAnyStep, own, step, grad_scale).value();
  }
  const OptimizerRule& others = *find_optimizer_rule(facts_->others);
  for (const RuleCoefficient& each : others.coefficients) {
    own.emplace(each.name, each.fallback);
  }
  own["eps"] = (*this)["adam_eps"];
  own["lr"] = lr * (*this)["adam_lr_ratio"];
  return step_of(others, kAnyStep, own, step, grad_scale).value();
}

kernels::UpdateStep Rule::direction(double weight_decay, std::int64_t step, double grad_scale,
                                    const std::optional<std::array<double, 2>>& betas) const {
  const auto made = step_of(*facts_, kAnyStep, values_with(weight_decay, betas), step, grad_scale);
  return made.value_or(gradient_direction(grad_scale));
}

kernels::UpdateStep gradient_direction(double grad_scale) {
  return kernels::SgdStep{.grad_scale = static_cast<float>(grad_scale), .decay = 0.0F, .lr = -1.0F};
}

// lamb_cuda_kernel_part3 and fused_lamb_cuda of DeepSpeed 0.19.8.
kernels::UpdateStep Rule::directed_by_norms(
    double lr, std::int64_t step, double weight_norm, double direction_norm,
    const std::optional<std::array<double, 2>>& betas) const {
  const kernels::CoefficientValues own = values_with(0.0, betas);
  const auto correction = [&own, step](const char* beta) {
    return kernels::is_on(own, "bias_correction")
               ? 1.0 - std::pow(own.at(beta), static_cast<double>(step))
               : 1.0;
  };
  const double ratio = weight_norm != 0.0 && direction_norm != 0.0
                           ? std::max(own.at("min_coeff"),
                                      std::min(weight_norm / direction_norm, own.at("max_coeff")))
                           : 1.0;
  const double size = std::sqrt(correction("beta2")) / correction("beta1") * ratio;
  return kernels::DirectedStep::of({{"lr", lr}, {"weight_decay", 0.0}}, 0, size);
}

namespace {

GroupRanges& ranges_of(Tile& tile, std::size_t group) {
  const auto found = std::find_if(tile.begin(), tile.end(),
                                  [group](const auto& each) { return each.group == group; });
  return found != tile.end() ? *found : tile.emplace_back(GroupRanges{group, {}});
}

}  // namespace

// Goes through the parameters in memory order and cuts the part of each that lies in the shard at
// tile boundaries. A range never crosses a parameter, so it has one group and one weight decay.
std::vector<Tile> plan_updates(const sharding::FlatParameter& flat,
                               std::span<const std::size_t> groups, std::int64_t tile_numel,
                               const std::vector<bool>& left_out) {
  const std::int64_t whole = flat.owned().numel;
  const std::int64_t aligned = tile_numel / sharding::kAlignment * sharding::kAlignment;
  const std::int64_t size =
      tile_numel == 0 ? std::max<std::int64_t>(1, whole) : std::max(sharding::kAlignment, aligned);
  std::vector<Tile> tiles(static_cast<std::size_t>((whole + size - 1) / size));
  for (std::size_t i = 0; i < flat.parameters().size(); ++i) {
    if (left_out[i]) {
      continue;
    }
    const sharding::Overlap part = overlap(flat.layout(), i, flat.owned());
    const std::int64_t end = part.in_shard + part.numel;
    for (std::int64_t begin = part.in_shard; begin < end;) {
      const std::int64_t tile = begin / size;
      const std::int64_t numel = std::min(end, (tile + 1) * size) - begin;
      ranges_of(tiles[static_cast<std::size_t>(tile)], groups[i])
          .ranges.push_back({begin, numel, flat.parameters()[i].weight_decay});
      begin += numel;
    }
  }
  std::erase_if(tiles, [](const Tile& tile) { return tile.empty(); });  // only padding in it
  return tiles;
}

}  // namespace acc::optim
