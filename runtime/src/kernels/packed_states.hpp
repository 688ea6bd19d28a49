// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/kernels.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

/// States of optimizers in 8 bits, block by block, as in bitsandbytes (arXiv 2110.02861; the
/// default implementation of `quantize_blockwise` of bitsandbytes 0.50.2). A block has 256 elements
/// of a parameter, counted from its first. An element is the block's scale, its largest magnitude,
/// times one of 256 numbers (arXiv 1511.04561): the one that is closest. A pure function of the
/// values of the block.
namespace acc::kernels {

/// The largest value and the largest negated value of a block, at least 0 each; NaN: an element is.
struct Extremes {
  float highest = 0.0F;
  float lowest = 0.0F;

  void add(const Extremes& other) noexcept {
    highest = larger_of(highest, other.highest);
    lowest = larger_of(lowest, other.lowest);
  }
};

/// Returns the scale of a block. It is at most a rounding error below the largest magnitude, so
/// that it is a function of the packed values: `scale_of_packed` returns it.
float scale_of(const Extremes& extremes) noexcept;
/// Returns the scale of a block from the extremes of its unpacked values.
float scale_of_packed(const Extremes& extremes) noexcept;

/// States of a rule: true for those that may be negative.
using SignedStates = std::span<const bool>;

/// The arrays of an update from element `begin` on, without states.
UpdateArrays arrays_from(const UpdateArrays& arrays, std::size_t begin);

/// Updates weights and states by the rule of `step`; `arrays` has no states. known: the extremes of
/// the new states, by state, of a range that is a part of one block; empty: of whole blocks.
void update_packed(const UpdateStep& step, const UpdateArrays& arrays, const PackedRange& range,
                   SignedStates states, std::span<const Extremes> known = {});

/// Returns the extremes that the new states of a part of one block would have. Changes nothing.
std::array<Extremes, kMostStates> measure_packed(const UpdateStep& step, const UpdateArrays& arrays,
                                                 const PackedRange& range, SignedStates states);

}  // namespace acc::kernels
