#pragma once

#include "acc/plugins/sharding_settings.hpp"
#include "acc/runtime/initializer.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace acc::sharding {

/// How a flat parameter is treated.
struct FlatTraits {
  bool trainable = true;
  bool persistent = false;  ///< stays gathered from one step to the next
  bool ignored = false;     ///< whole on every rank; its gradients are this rank's own

  bool operator==(const FlatTraits&) const = default;
};

/// A parameter as the program registered it.
struct ParameterRecord {
  std::string name;  ///< full name
  std::vector<std::string> aliases;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  Initializer initializer;
  bool trainable = true;
  bool weight_decay = true;
  bool ignored = false;     ///< in a module that fsdp_ignored_modules names
  bool persistent = false;  ///< stays gathered from one step to the next

  [[nodiscard]] FlatTraits traits() const noexcept { return {trainable, persistent, ignored}; }
};

/// One flat parameter of a unit.
struct FlatPlan {
  FlatTraits traits;
  std::vector<std::size_t> members;  ///< places in the unit's list, in the flat parameter's order
};

/// Cuts a unit's parameters into flat parameters, by these rules in this order:
/// - what is trained lies apart from what is frozen, so that a gradient shard is always where its
///   weight is, and what is ignored apart from both;
/// - round_robin_gradients, with ZeRO 1 and 2: of what is trained t_0, t_N, t_2N, …, t_1, t_(N+1),
/// …, N being `shards`;
/// - contiguous_gradients off: each trained parameter by itself;
/// - reduce_bucket_size, and allgather_bucket_size where weights are gathered after the step: of
///   what is trained no more elements in one flat parameter, a larger parameter alone.
std::vector<FlatPlan> plan_flats(const std::vector<ParameterRecord>& parameters,
                                 const plugins::ShardingSettings& settings, int shards);

}  // namespace acc::sharding
