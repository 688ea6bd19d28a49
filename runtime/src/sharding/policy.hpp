// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/plugins/sharding_settings.hpp"
#include "acc/runtime/types.hpp"

namespace acc::precision {

/// In which dtype each thing of a model is: the one place that turns `mixed_precision`, the dtype
/// in which the program loads its model, and the mode's own rules into dtypes. Three modes come out
/// of it: FSDP low precision (everything 16-bit, no mixed precision), FSDP mixed (float32 shards)
/// and DeepSpeed (float32 partitions made of the 16-bit weights).
struct PrecisionPolicy {
  DType loaded = DType::float32;    ///< initial values are rounded to it first
  DType stored = DType::float32;    ///< the optimizer's weights, sharded
  DType frozen = DType::float32;    ///< the shards of what is not trained
  DType moments = DType::float32;   ///< the optimizer's states
  DType gathered = DType::float32;  ///< weights on their way and in use
  DType viewed = DType::float32;    ///< what the program sees of weights and gradients
  DType reduced = DType::float32;   ///< sharded gradients on their way; sums are always float32
  DType reduced_whole = DType::float32;  ///< gradients on their way that every rank keeps whole
  DType buffers = DType::float32;        ///< what is neither trained nor sharded
  bool rounds_initial = false;       ///< `stored` begins as `gathered` rounds the initial values
  bool stochastic_rounding = false;  ///< where an update rounds to 16-bit `stored`

  bool operator==(const PrecisionPolicy&) const = default;

  /// In which dtype shards lie: only what is trained is widened.
  [[nodiscard]] DType stored_of(bool trainable) const noexcept {
    return trainable ? stored : frozen;
  }
};

/// `load`: dtype of the weights as the program brings them (`ModelOptions::dtype`). Throws
/// Error(config) for a dtype that weights cannot have, and for gradients reduced in fp8.
PrecisionPolicy make_policy(const plugins::ShardingSettings& settings, DType load,
                            plugins::Device device);

}  // namespace acc::precision
