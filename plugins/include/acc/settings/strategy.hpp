// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"

namespace acc::settings {

/// A strategy as independent switches. The runtime reads only these and never compares strategy
/// names, so that one engine serves all strategies. Semantics of sharding: FSDP, arXiv 2304.11277;
/// ZeRO, arXiv 1910.02054.
struct StrategySwitches {
  bool shard_parameters;       ///< a rank keeps only its shard between a step and the next forward
  bool reshard_after_forward;  ///< gathered weights are freed between forward and backward
  bool shard_gradients;        ///< gradients are reduced to a shard in every micro-step
  bool shard_optimizer;        ///< optimizer state covers the shard only
  bool replicate;              ///< shard groups are smaller than the world; each holds one copy
};

/// Returns the switches of a strategy.
constexpr StrategySwitches switches(Strategy strategy) noexcept {
  switch (strategy) {
    case Strategy::no_shard: return {false, false, false, false, false};
    case Strategy::shard_optimizer: return {false, false, false, true, false};
    case Strategy::shard_grad_op: return {true, false, true, true, false};
    case Strategy::full_shard: return {true, true, true, true, false};
    case Strategy::hybrid_shard: return {true, true, true, true, true};
    case Strategy::hybrid_shard_zero2: return {true, false, true, true, true};
  }
  return {};
}

/// True if each machine of a job has all state of the job, as far as the shards of a copy lie on
/// one machine: NO_SHARD and the hybrid strategies. Machines may then leave a job and come back
/// (elastic_replicas).
constexpr bool has_whole_copies(Strategy strategy) noexcept {
  const StrategySwitches on = switches(strategy);
  return !on.shard_optimizer || on.replicate;
}

/// Numbers of units, besides the root unit, of which a rank holds buffers at the same time. The
/// runtime's pools keep to them, and estimate-memory multiplies by them.
struct BufferCounts {
  int gathered;       ///< one unit in use and, with an early gather, the next one
  int gradients;      ///< one being computed and, if reductions overlap with it, one being reduced
  int offloaded = 3;  ///< reduced shards for an offloaded optimizer: one being reduced, two copied
};

/// overlaps: overlap_comm.
constexpr BufferCounts buffer_counts(bool gathers_early, bool overlaps) noexcept {
  return {.gathered = gathers_early ? 2 : 1, .gradients = overlaps ? 2 : 1};
}

}  // namespace acc::settings
