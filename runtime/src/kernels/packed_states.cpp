// SPDX-License-Identifier: Apache-2.0
#include "kernels/packed_states.hpp"

#include "kernels/packed_codes.hpp"

#include <algorithm>

namespace acc::kernels {
namespace {

std::size_t states_of(const UpdateStep& step) {
  return std::visit([](const auto& each) { return static_cast<std::size_t>(each.kStates); }, step);
}

/// States of one block or a part of it, unpacked.
class Unpacked {
 public:
  /// Unpacks elements [begin, begin + numel) of a range, of which `begin` is the first of a block.
  Unpacked(const PackedRange& range, SignedStates states, std::size_t begin, std::size_t numel)
      : range_(range), states_(states), begin_(begin), numel_(numel) {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      kernels().unpack(range_.codes[i] + begin_, states_[i], scale(i), values_[i].data(), numel_);
    }
  }

  void update(const UpdateStep& step, UpdateArrays arrays) {
    arrays.moment_dtype = DType::float32;
    arrays.first = values_[0].data();
    arrays.second = values_[1].data();
    arrays.third = values_[2].data();
    kernels().update(step, arrays, 0, numel_);
  }

  [[nodiscard]] Extremes extremes(std::size_t state) const {
    Extremes found;
    kernels().extremes(values_[state].data(), numel_, &found.highest, &found.lowest);
    return found;
  }

  void pack(std::span<const Extremes> known) {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      scale(i) = scale_of(known.empty() ? extremes(i) : known[i]);
      kernels().pack(values_[i].data(), states_[i], scale(i), range_.codes[i] + begin_, numel_);
    }
  }

 private:
  [[nodiscard]] float& scale(std::size_t state) const {
    return range_.scales[state][begin_ / kPackedBlock];
  }

  const PackedRange& range_;
  SignedStates states_;
  std::size_t begin_;
  std::size_t numel_;
  std::array<std::array<float, kPackedBlock>, kMostStates> values_;  // not initialized
};

}  // namespace

float scale_of(const Extremes& extremes) noexcept {
  return scale_of_extremes(extremes.highest, extremes.lowest);
}

// Without the highest number, the largest magnitude is that of the lowest, which may also be that
// of a positive number.
float scale_of_packed(const Extremes& extremes) noexcept {
  return extremes.lowest >= extremes.highest ? scale_of_lowest(extremes.lowest) : extremes.highest;
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
  const std::size_t whole = known.empty() ? range.numel / kPackedBlock * kPackedBlock : 0;
  kernels().update_packed(own, arrays, range, whole);
  if (whole < range.numel) {
    Unpacked part(range, states.first(states_of(step)), whole, range.numel - whole);
    part.update(own, arrays_from(arrays, range.begin + whole));
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
    found[i] = part.extremes(i);
  }
  return found;
}

}  // namespace acc::kernels
