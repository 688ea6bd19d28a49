// SPDX-License-Identifier: Apache-2.0
#include "kernels/packed_states.hpp"

#include "kernels/packed_codes.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace acc::kernels {
namespace {

/// Elements that are unpacked at a time; they stay in the L1 cache.
constexpr std::size_t kChunk = 2048;

/// The smallest scale of which `value` is the lowest number.
float scale_of_lowest(float value) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (!(value > 0.0F && value < kInfinity)) {
    return value;
  }
  float scale = value / kLowestMagnitude;
  while (scale * kLowestMagnitude < value) {
    scale = std::nextafter(scale, kInfinity);
  }
  for (float below = std::nextafter(scale, 0.0F); below * kLowestMagnitude >= value;
       below = std::nextafter(scale, 0.0F)) {
    scale = below;
  }
  return scale;
}

std::size_t states_of(const UpdateStep& step) {
  return std::visit([](const auto& each) { return static_cast<std::size_t>(each.kStates); }, step);
}

/// States of some elements, unpacked.
class Unpacked {
 public:
  /// Unpacks elements [begin, begin + numel) of a range, of which `begin` is the first of a block.
  Unpacked(const PackedRange& range, SignedStates states, std::size_t begin, std::size_t numel)
      : range_(range), states_(states), begin_(begin), numel_(numel) {
    for_each_block([&](std::size_t at, std::size_t count, std::size_t block) {
      for (std::size_t i = 0; i < states_.size(); ++i) {
        kernels().unpack(range_.codes[i] + begin_ + at, states_[i], range_.scales[i][block],
                         values_[i].data() + at, count);
      }
    });
  }

  void update(const UpdateStep& step, UpdateArrays arrays) {
    arrays.moment_dtype = DType::float32;
    arrays.first = values_[0].data();
    arrays.second = values_[1].data();
    arrays.third = values_[2].data();
    kernels().update(step, arrays, 0, numel_);
  }

  [[nodiscard]] Extremes extremes(std::size_t state, std::size_t at, std::size_t count) const {
    Extremes found;
    kernels().extremes(values_[state].data() + at, count, &found.highest, &found.lowest);
    return found;
  }

  void pack(std::span<const Extremes> known) {
    for_each_block([&](std::size_t at, std::size_t count, std::size_t block) {
      for (std::size_t i = 0; i < states_.size(); ++i) {
        const float scale = scale_of(known.empty() ? extremes(i, at, count) : known[i]);
        range_.scales[i][block] = scale;
        kernels().pack(values_[i].data() + at, states_[i], scale, range_.codes[i] + begin_ + at,
                       count);
      }
    });
  }

 private:
  template <typename Visit>
  void for_each_block(const Visit& visit) const {
    constexpr auto kBlock = static_cast<std::size_t>(kPackedBlock);
    for (std::size_t at = 0; at < numel_; at += kBlock) {
      visit(at, std::min(kBlock, numel_ - at), (begin_ + at) / kBlock);
    }
  }

  const PackedRange& range_;
  SignedStates states_;
  std::size_t begin_;
  std::size_t numel_;
  std::array<std::array<float, kChunk>, kMostStates> values_;  // not initialized
};

}  // namespace

// The highest number is 1 times the scale. The lowest is not -1, so that a block whose largest
// magnitude is that of a negative number does not contain it. Several scales may give the same
// lowest number; the smallest of them is taken.
float scale_of(const Extremes& extremes) noexcept {
  if (extremes.lowest > extremes.highest) {
    return scale_of_lowest(extremes.lowest * kLowestMagnitude);
  }
  return extremes.highest;
}

// Without the highest number, the largest magnitude is that of the lowest, which may also be that
// of a positive number.
float scale_of_packed(const Extremes& extremes) noexcept {
  if (extremes.lowest >= extremes.highest) {
    return scale_of_lowest(extremes.lowest);
  }
  return extremes.highest;
}

UpdateArrays arrays_from(const UpdateArrays& arrays, std::size_t begin) {
  UpdateArrays moved = arrays;
  moved.first = moved.second = moved.third = nullptr;
  moved.weights = static_cast<std::byte*>(arrays.weights) + begin * nbytes_of(arrays.weight_dtype);
  moved.grads = arrays.grads + begin;
  if (arrays.rounded != nullptr) {
    moved.rounded =
        static_cast<std::byte*>(arrays.rounded) + begin * nbytes_of(arrays.rounded_dtype);
  }
  moved.noise_first = arrays.noise_first + static_cast<std::uint32_t>(begin);
  return moved;
}

void update_packed(const UpdateStep& step, const UpdateArrays& arrays, const PackedRange& range,
                   SignedStates states, std::span<const Extremes> known) {
  const UpdateStep own = adjusted(step, arrays.clip, range.decays);
  for (std::size_t at = 0; at < range.numel; at += kChunk) {
    Unpacked part(range, states.first(states_of(step)), at, std::min(kChunk, range.numel - at));
    part.update(own, arrays_from(arrays, range.begin + at));
    part.pack(known);
  }
}

std::array<Extremes, kMostStates> measure_packed(const UpdateStep& step, const UpdateArrays& arrays,
                                                 const PackedRange& range, SignedStates states) {
  std::array<float, kPackedBlock> weights;
  UpdateArrays here = arrays_from(arrays, range.begin);
  cast(here.weights, here.weight_dtype, weights.data(), DType::float32, range.numel);
  here.weights = weights.data();
  here.weight_dtype = DType::float32;
  here.rounded = nullptr;
  Unpacked part(range, states.first(states_of(step)), 0, range.numel);
  part.update(adjusted(step, arrays.clip, range.decays), here);
  std::array<Extremes, kMostStates> found;
  for (std::size_t i = 0; i < states_of(step); ++i) {
    found[i] = part.extremes(i, 0, range.numel);
  }
  return found;
}

}  // namespace acc::kernels
