#pragma once

#include "acc/plugins/sharding_settings.hpp"

#include <cstdint>

namespace acc::sharding {

/// Which parameters stay gathered from one step to the next, asked for one after the other in the
/// order of the model: those with fewer elements than the threshold, as long as together they have
/// no more than the model's (DeepSpeed stage 3).
class PersistenceBudget {
 public:
  explicit PersistenceBudget(const plugins::ShardingSettings& settings)
      : threshold_(settings.param_persistence_threshold),
        left_(settings.model_persistence_threshold) {}

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
