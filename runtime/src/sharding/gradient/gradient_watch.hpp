// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/gradient/written_gradient.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace acc::sharding {

/// Remembers in which micro-steps this rank's own gradient of one flat parameter was not finite.
/// The reduced gradient no longer shows which rank a NaN came from, so each gradient is measured
/// before its reduction. The results stay on the device and are read only if the global norm is not
/// finite (NaN policy "raise").
class GradientWatch {
 public:
  /// All arguments outlive this object.
  GradientWatch(const Context& context, ScratchPool& scratch, const FlatLayout& layout)
      : context_(context), scratch_(scratch), layout_(layout) {}

  /// Measures a gradient that is complete. number: `Counters::gradients_closed` of it; micro_step:
  /// from 1.
  void record(const WrittenGradient& gradient, std::int64_t number, int micro_step);
  void forget() { closed_.clear(); }

  struct Closed {
    std::int64_t number;
    int micro_step;
  };
  /// The gradients since the last step.
  [[nodiscard]] const std::vector<Closed>& closed() const noexcept { return closed_; }
  /// The first of `closed()` with a gradient that was not finite. Waits for the device.
  [[nodiscard]] std::optional<std::int64_t> first_non_finite() const;

 private:
  const Context& context_;
  ScratchPool& scratch_;
  const FlatLayout& layout_;
  device::MemoryPtr squares_;  ///< squared norms: one double per gradient of a step
  std::vector<Closed> closed_;
};

}  // namespace acc::sharding
