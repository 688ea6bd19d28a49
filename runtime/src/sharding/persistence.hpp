// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/sharding_settings.hpp"

#include <cstdint>

namespace acc::sharding {

/// Selects the parameters that stay gathered (DeepSpeed stage 3:
/// stage3_param_persistence_threshold, stage3_model_persistence_threshold). `admits` is called once
/// per parameter, in the model's order.
class PersistenceBudget {
 public:
  explicit PersistenceBudget(const settings::ShardingSettings& settings)
      : threshold_(settings.param_persistence_threshold),
        left_(settings.model_persistence_threshold) {}

  /// True if a parameter of `numel` elements stays gathered: it has fewer elements than the first
  /// threshold, and all admitted parameters together have no more than the second.
  bool admits(std::int64_t numel) {
    const bool stays = numel < threshold_ && numel <= left_;
    left_ -= stays ? numel : 0;
    return stays;
  }

 private:
  std::int64_t threshold_;
  std::int64_t left_;
};

}  // namespace acc::sharding
