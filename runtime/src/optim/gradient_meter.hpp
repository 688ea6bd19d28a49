// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "sharding/context.hpp"
#include "sharding/flat_parameter.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace acc::optim {

/// Measures and clips the reduced gradients of all flat parameters before the update. Every
/// function except `clamp` is collective and returns the same value on every rank.
class GradientMeter {
 public:
  /// flats: trainable, in the same order on all ranks; they and `context` outlive this.
  GradientMeter(const sharding::Context& context, std::vector<sharding::FlatParameter*> flats);

  /// Returns the global L2 norm, computed in double: not finite if and only if an element is not. A
  /// gradient that every rank has whole counts once; for ignored modules the mean over ranks of the
  /// squares counts.
  double norm();
  /// Multiplies each element by `scale` and clips it to [-limit, limit].
  void clamp(double scale, double limit);
  /// Returns the Error(collective) for a norm that is not finite. It names the unit, the micro-step
  /// and the ranks whose own gradient was non-finite first. Needs `Context::watches_gradients`.
  Error non_finite(std::int64_t step);

 private:
  std::vector<std::int64_t> first_of_each_rank();
  [[nodiscard]] std::string where(std::int64_t closed) const;
  std::string unit_of_sum();

  const sharding::Context& context_;
  std::vector<sharding::FlatParameter*> flats_;
  bool any_ignored_ = false;
  device::MemoryPtr squares_;       ///< two doubles of the updater: of shards, of ignored modules
  device::MemoryPtr squares_here_;  ///< their copy in host memory
};

}  // namespace acc::optim
