// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/initializer.hpp"
#include "acc/settings/strategy.hpp"
#include "sharding/policy.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace acc::sharding {

/// Properties that all parameters of a flat parameter share.
struct FlatTraits {
  bool trainable = true;
  bool persistent = false;  ///< not freed; gathered once after each step
  bool ignored = false;     ///< whole on every rank; gradients are not reduced over ranks

  bool operator==(const FlatTraits&) const = default;
};

/// A parameter as the program registered it.
struct ParameterRecord {
  std::string name;          ///< full name
  std::size_t declared = 0;  ///< number in the order in which the program declared all parameters
  std::vector<std::string> aliases;
  std::vector<std::int64_t> shape;
  std::int64_t numel = 0;
  Initializer initializer;
  bool trainable = true;
  bool weight_decay = true;
  PrecisionPolicy precision;
  bool has_own_dtypes = false;  ///< ParameterOptions::dtypes
  bool ignored = false;         ///< in a module that fsdp_ignored_modules names
  bool persistent = false;      ///< not freed; gathered once after each step

  /// All names, its own first.
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> all = {name};
    all.insert(all.end(), aliases.begin(), aliases.end());
    return all;
  }
  [[nodiscard]] FlatTraits traits() const noexcept { return {trainable, persistent, ignored}; }
};

/// One flat parameter of a unit.
struct FlatPlan {
  FlatTraits traits;
  std::vector<std::size_t> members;  ///< indices into the unit's parameters, in memory order
};

/// Divides a unit's parameters into flat parameters. by_rows: each parameter is one
/// (`ModelOptions::by_rows`). Otherwise with these rules in this order:
/// - trained, frozen, persistent and ignored parameters are separated, so that a gradient shard has
///   the same offsets as its weight shard;
/// - round_robin_gradients with ZeRO 1 and 2: trained parameters are ordered t_0, t_N, t_2N, …,
///   t_1, t_(N+1), …, where N is `shards`;
/// - contiguous_gradients false: each trained parameter is a flat parameter;
/// - reduce_bucket_size (and allgather_bucket_size if weights are gathered after the step) is the
///   largest number of elements of a trained flat parameter; a larger parameter is alone in one.
/// The plan is a pure function of the declaration, so all ranks get the same one.
std::vector<FlatPlan> plan_flats(const std::vector<ParameterRecord>& parameters,
                                 const settings::ShardingSettings& settings,
                                 const settings::StrategySwitches& on, int shards, bool by_rows);

}  // namespace acc::sharding
