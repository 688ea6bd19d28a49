// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace acc {

/// Type of elements, named by `to_string`. Parameters are float32, bfloat16 or float16.
enum class DType : std::uint8_t { float32, bfloat16, float16, float64, byte };
/// Operation of a reduction over ranks.
enum class ReduceOp : std::uint8_t { sum, max };

/// Bytes of one element.
constexpr std::size_t nbytes_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32: return 4;
    case DType::bfloat16:
    case DType::float16: return 2;
    case DType::float64: return 8;
    case DType::byte: return 1;
  }
  return 1;
}

constexpr std::string_view to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32: return "float32";
    case DType::bfloat16: return "bfloat16";
    case DType::float16: return "float16";
    case DType::float64: return "float64";
    case DType::byte: return "byte";
  }
  return "?";
}

}  // namespace acc
