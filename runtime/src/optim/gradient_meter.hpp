// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "sharding/context.hpp"
#include "sharding/flat_parameter.hpp"
#include "sharding/late_doubles.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace acc::optim {

/// Measures and clips the reduced gradients of all flat parameters before the update. `measure`,
/// `non_finite` and `unit_of_sum` are collective; every value is the same on all ranks.
class GradientMeter {
 public:
  /// flats: trainable, in the same order on all ranks; they and `context` outlive this.
  GradientMeter(const sharding::Context& context, std::vector<sharding::FlatParameter*> flats);

  /// Queues the sum of squares over all ranks, in double. A gradient that every rank has whole
  /// counts once; for ignored modules the mean over ranks of the squares counts.
  void measure();
  /// Returns the global L2 norm, as measured last: not finite if and only if an element is not.
  /// Blocks until it is computed.
  [[nodiscard]] double norm();
  /// Queues the computation of the norm, as measured last, and of the factor that clips to
  /// `max_norm` (0: 1). Returns both.
  [[nodiscard]] sharding::LateDoubles clip_to_norm(double max_norm);
  /// That factor, in memory of the updater, for `UpdateArrays::clip`.
  [[nodiscard]] const float* clip_factor() const noexcept;
  /// Forgets the last measurement.
  void forget() { sums_.clear(); }
  /// Multiplies each element by `scale` and clips it to [-limit, limit].
  void clamp(double scale, double limit);
  /// Returns the Error(collective) for a norm that is not finite. It names the unit, the micro-step
  /// and the ranks whose own gradient was non-finite first. Needs `Context::watches_gradients`.
  Error non_finite(std::int64_t step);

 private:
  void sum(collectives::ProcessGroup& group, double* squares);
  std::vector<std::int64_t> first_of_each_rank();
  [[nodiscard]] std::string where(std::int64_t closed) const;
  std::string unit_of_sum();

  const sharding::Context& context_;
  std::vector<sharding::FlatParameter*> flats_;
  bool any_ignored_ = false;
  device::MemoryPtr squares_;  ///< two doubles of the updater: of shards, of ignored modules
  device::MemoryPtr figures_;  ///< kernels::ClipFigures of the updater
  sharding::LateReader reader_;
  std::vector<collectives::WorkPtr> sums_;  ///< of the last measurement
  device::MemoryPtr squares_here_;          ///< their copy in host memory
};

}  // namespace acc::optim
