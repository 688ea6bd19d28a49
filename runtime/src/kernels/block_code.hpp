// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/types.hpp"

#include <cstddef>

/// Numbers in few bits. A block of kCodeBlock numbers x becomes a scale s, float32, and an integer
/// q for each number: x is about q s, and |q| is at most 127 with 8 bits, 63 with 7. s is the
/// largest |x| of the block divided by that limit, and q is rounded to nearest even (blockwise
/// quantisation of ZeRO++, arXiv 2306.10209).
///
/// A rotated block is first multiplied by an orthogonal matrix H of entries +1/16 and -1/16
/// (Hadamard), which spreads outliers over the block (SDP4Bit, arXiv 2410.15526), and
/// again, by its inverse, after it was read.
///
/// Bounds, with s of the (rotated) block. Not rotated: the error of a number is at most s/2.
/// Rotated: the root of the sum of the squared errors of a block is at most 8 s, so on average over
/// its numbers the error is at most s/2 as well.
///
/// A block with an infinity or NaN is read as NaN throughout; so is a rotated block whose rotation
/// leaves the range of float32, which needs a number above 2e37. A (rotated) block without a number
/// of kLeastCoded or more is read as zeros.
namespace acc::kernels {

inline constexpr std::size_t kCodeBlock = 256;
inline constexpr float kLeastCoded = 1e-30F;

constexpr std::size_t code_block_nbytes(BlockCode code) noexcept {
  return sizeof(float) + kCodeBlock / 8 * static_cast<std::size_t>(code.bits);
}

/// Bytes of `numel` numbers. The last block is padded with zeros.
constexpr std::size_t coded_nbytes(BlockCode code, std::size_t numel) noexcept {
  return (numel + kCodeBlock - 1) / kCodeBlock * code_block_nbytes(code);
}

/// from: [numel] of `dtype` (float32, bfloat16 or float16); to: [coded_nbytes].
void encode(BlockCode code, const void* from, DType dtype, std::size_t numel, std::byte* to);
/// Reads numbers [first, first + numel); first: a multiple of kCodeBlock. to: [numel] of `dtype`.
void decode(BlockCode code, const std::byte* from, std::size_t first, std::size_t numel, void* to,
            DType dtype);

}  // namespace acc::kernels
