// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/types.hpp"
#include "acc/settings/sharding_settings.hpp"

namespace acc::sharding {

/// The dtype of each kind of value of a model. `make_policy` alone derives them, from
/// `mixed_precision`, the dtype in which the program loads its model, and the mode's rules. The
/// modes are FSDP low precision (everything in 16 bits, no mixed precision), FSDP mixed precision
/// (float32 shards) and DeepSpeed (float32 partitions, made from the 16-bit weights).
struct PrecisionPolicy {
  DType loaded = DType::float32;    ///< the program's weights; initial values are rounded to it
  DType stored = DType::float32;    ///< sharded weights that the optimizer updates
  DType frozen = DType::float32;    ///< shards of frozen parameters
  DType moments = DType::float32;   ///< optimizer states
  DType gathered = DType::float32;  ///< weights during a gather and in use
  DType viewed = DType::float32;    ///< weights and gradients as the program accesses them
  DType reduced = DType::float32;   ///< sharded gradients during a reduction; sums are float32
  DType reduced_whole = DType::float32;  ///< gradients during a reduction that all ranks keep
  DType buffers = DType::float32;        ///< registered buffers without a dtype of their own
  bool rounds_initial = false;           ///< initial weights are rounded to `gathered`
  bool stochastic = false;               ///< updates of 16-bit `stored` round stochastically

  bool operator==(const PrecisionPolicy&) const = default;

  /// Dtype of the shards of trained or frozen parameters.
  [[nodiscard]] DType stored_of(bool trainable) const noexcept {
    return trainable ? stored : frozen;
  }
};

/// load: dtype in which the program loads its weights (`ModelOptions::dtype`). Throws
/// Error(invalid_argument) for a dtype that weights cannot have, Error(not_supported) for gradients
/// reduced in fp8.
PrecisionPolicy make_policy(const settings::ShardingSettings& settings, DType load,
                            settings::Device device);

/// The policy of one parameter with dtypes of its own. Throws Error(not_supported) for those that
/// cannot be converted into each other, or that `trainable` needs and that are not summed.
PrecisionPolicy policy_of(const ParameterDTypes& dtypes, bool trainable);

}  // namespace acc::sharding
