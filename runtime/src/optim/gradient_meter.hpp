#pragma once

#include "acc/base/error.hpp"
#include "sharding/engine.hpp"
#include "sharding/flat_parameter.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace acc::optim {

/// What a step has to know of all reduced gradients, and what it does to them before the update.
/// Every function is collective and gives the same on every rank.
class GradientMeter {
 public:
  /// flats: trainable, in an order that all ranks have; they and `engine` outlive this.
  GradientMeter(sharding::Engine& engine, std::vector<sharding::FlatParameter*> flats);

  /// The L2 norm over all ranks, in double: not finite if and only if an element is not. What every
  /// rank has whole counts once, of ignored modules the ranks' mean.
  double norm();
  /// Each element times `scale`, brought into [-limit, limit].
  void clamp(double scale, double limit);
  /// Whose gradient made a norm that is not finite: the unit and the ranks where one was first, as
  /// an Error(collective). Needs `Engine::watches_gradients`.
  Error non_finite(std::int64_t step);

 private:
  std::vector<std::int64_t> first_of_each_rank();
  [[nodiscard]] std::string where(std::int64_t closed) const;
  std::string unit_of_sum();

  sharding::Engine& engine_;
  std::vector<sharding::FlatParameter*> flats_;
  bool any_ignored_ = false;
  device::MemoryPtr squares_;       ///< two doubles of the updater: of shards, of what is ignored
  device::MemoryPtr squares_here_;  ///< and their copy in host memory
};

}  // namespace acc::optim
