// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace acc::optim {

/// What a recording has of a tensor's elements (docs/formats/recording.md): linear, but for the
/// sum of squares.
struct Sketch {
  double squares = 0.0;
  std::array<double, 4> numbers{};

  /// Adds elements. begin: index of the first of them in the whole tensor.
  void add(std::span<const float> values, std::int64_t begin);
  /// That of the tensor multiplied by a factor.
  [[nodiscard]] Sketch times(double factor) const;

  bool operator==(const Sketch&) const = default;
};

}  // namespace acc::optim
