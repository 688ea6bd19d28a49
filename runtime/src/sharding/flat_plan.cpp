// SPDX-License-Identifier: Apache-2.0
#include "sharding/flat_plan.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace acc::sharding {
namespace {

using Parameters = std::vector<ParameterRecord>;

/// One flat parameter for each combination of traits that occurs, trained ones first.
std::vector<FlatPlan> by_treatment(const Parameters& parameters) {
  std::vector<FlatPlan> plans;
  constexpr std::array kTreatments = {
      FlatTraits{.trainable = true},
      FlatTraits{.trainable = false},
      FlatTraits{.trainable = true, .persistent = true},
      FlatTraits{.trainable = false, .persistent = true},
      FlatTraits{.trainable = true, .ignored = true},
      FlatTraits{.trainable = false, .ignored = true},
  };
  for (const FlatTraits& traits : kTreatments) {
    FlatPlan plan{.traits = traits, .members = {}};
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].traits() == traits) {
        plan.members.push_back(i);
      }
    }
    if (!plan.members.empty()) {
      plans.push_back(std::move(plan));
    }
  }
  return plans;
}

/// Orders parameters round robin (DeepSpeed's round_robin_gradients). In declaration order, a
/// rank's partition would consist of parameters that are neighbours in the backward; interleaved,
/// every rank owns parameters from all parts of the model.
void interleave(FlatPlan& plan, std::size_t shards) {
  std::vector<std::size_t> order;
  for (std::size_t first = 0; first < shards; ++first) {
    for (std::size_t i = first; i < plan.members.size(); i += shards) {
      order.push_back(plan.members[i]);
    }
  }
  plan.members = std::move(order);
}

/// Largest number of elements of one flat parameter; 0: no limit.
std::int64_t bucket_of(const settings::ShardingSettings& settings,
                       const settings::StrategySwitches& on) {
  const bool gathers_after_step = on.shard_optimizer && !on.shard_parameters;
  const std::int64_t reduced = settings.reduce_bucket_size;
  const std::int64_t gathered = gathers_after_step ? settings.allgather_bucket_size : 0;
  return reduced > 0 && gathered > 0 ? std::min(reduced, gathered) : std::max(reduced, gathered);
}

/// Fills flat parameters in order up to `bucket` elements. Parameters are never split, so a larger
/// one is alone in its flat parameter.
std::vector<FlatPlan> cut(const FlatPlan& plan, const Parameters& parameters, std::int64_t bucket) {
  std::vector<FlatPlan> parts;
  std::int64_t numel = 0;
  for (const std::size_t member : plan.members) {
    if (parts.empty() || numel + parameters[member].numel > bucket) {
      parts.push_back({.traits = plan.traits, .members = {}});
      numel = 0;
    }
    parts.back().members.push_back(member);
    numel += parameters[member].numel;
  }
  return parts;
}

}  // namespace

std::vector<FlatPlan> plan_flats(const Parameters& parameters,
                                 const settings::ShardingSettings& settings,
                                 const settings::StrategySwitches& on, int shards, bool by_rows) {
  if (by_rows) {
    std::vector<FlatPlan> plans;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      plans.push_back({.traits = parameters[i].traits(), .members = {i}});
    }
    return plans;
  }
  const bool round_robin = settings.round_robin_gradients && on.shard_optimizer &&
                           !on.reshard_after_forward && !on.replicate;
  // A bucket of one element puts each parameter into its own flat parameter.
  const std::int64_t bucket = settings.contiguous_gradients ? bucket_of(settings, on) : 1;
  std::vector<FlatPlan> plans;
  for (FlatPlan& plan : by_treatment(parameters)) {
    if (!plan.traits.trainable || plan.traits.ignored) {
      plans.push_back(std::move(plan));
      continue;
    }
    if (round_robin) {
      interleave(plan, static_cast<std::size_t>(shards));
    }
    if (bucket == 0) {
      plans.push_back(std::move(plan));
      continue;
    }
    std::vector<FlatPlan> parts = cut(plan, parameters, bucket);
    std::move(parts.begin(), parts.end(), std::back_inserter(plans));
  }
  return plans;
}

}  // namespace acc::sharding
