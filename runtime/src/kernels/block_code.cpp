// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_code.hpp"

#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>

namespace acc::kernels {

void encode(BlockCode code, const void* from, DType dtype, std::size_t numel, std::byte* to) {
  const Kernels& table = kernels();
  const auto* const bytes = static_cast<const std::byte*>(from);
  std::array<float, kCodeBlock> block;
  for (std::size_t begin = 0; begin < numel; begin += kCodeBlock) {
    const std::size_t count = std::min(kCodeBlock, numel - begin);
    const std::byte* values = bytes + begin * nbytes_of(dtype);
    if (dtype != DType::float32 || count < kCodeBlock) {
      cast(values, dtype, block.data(), DType::float32, count);
      std::fill(block.begin() + static_cast<std::ptrdiff_t>(count), block.end(), 0.0F);
      values = reinterpret_cast<const std::byte*>(block.data());
    }
    table.encode_block(code, reinterpret_cast<const float*>(values), to);
    to += code_block_nbytes(code);
  }
}

void decode(BlockCode code, const std::byte* from, std::size_t first, std::size_t numel, void* to,
            DType dtype) {
  const Kernels& table = kernels();
  auto* const bytes = static_cast<std::byte*>(to);
  from += first / kCodeBlock * code_block_nbytes(code);
  std::array<float, kCodeBlock> block;
  for (std::size_t begin = 0; begin < numel; begin += kCodeBlock) {
    const std::size_t count = std::min(kCodeBlock, numel - begin);
    std::byte* const values = bytes + begin * nbytes_of(dtype);
    if (dtype == DType::float32 && count == kCodeBlock) {
      table.decode_block(code, from, reinterpret_cast<float*>(values));
    } else {
      table.decode_block(code, from, block.data());
      cast(block.data(), DType::float32, values, dtype, count);
    }
    from += code_block_nbytes(code);
  }
}

}  // namespace acc::kernels
