// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string_view>

namespace acc {

/// Type of elements, named by `to_string` as in torch; `byte` is memory without a type. Parameters
/// are float32, bfloat16 or float16; buffers have any dtype but `byte`.
enum class DType : std::uint8_t {
  float32,
  bfloat16,
  float16,
  float64,
  byte,
  uint8,
  boolean,
  int8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64,
  complex32,
  complex64,
  complex128,
  float8_e4m3fn,
  float8_e5m2,
  float8_e4m3fnuz,
  float8_e5m2fnuz,
  float8_e8m0fnu
};
/// Operation of a reduction over ranks.
enum class ReduceOp : std::uint8_t { sum, max };

/// Dtypes of one parameter. Those that differ must be float32, bfloat16 or float16, like those of a
/// parameter that is trained; otherwise any dtype will do.
struct ParameterDTypes {
  DType stored;    ///< shards
  DType computed;  ///< gathered weights and gradients as the program sees them
  DType reduced;   ///< gradients as they are sent; sums are float32
};

/// Bytes of one element.
constexpr std::size_t nbytes_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::complex128: return 16;
    case DType::float64:
    case DType::int64:
    case DType::uint64:
    case DType::complex64: return 8;
    case DType::float32:
    case DType::int32:
    case DType::uint32:
    case DType::complex32: return 4;
    case DType::bfloat16:
    case DType::float16:
    case DType::int16:
    case DType::uint16: return 2;
    default: return 1;
  }
}

/// How numbers are sent in few bits: in blocks of integers with one scale for each block
/// (runtime/src/kernels/block_code.hpp).
struct BlockCode {
  int bits = 0;          ///< of an integer: 8 or 7; 0: the numbers are sent as they are
  bool rotated = false;  ///< a block is rotated before it is rounded

  explicit operator bool() const noexcept { return bits != 0; }
  bool operator==(const BlockCode&) const = default;
};

/// Names by enumerator.
inline constexpr std::string_view kDTypeNames[] = {
    "float32",         "bfloat16",      "float16",       "float64",     "byte",
    "uint8",           "bool",          "int8",          "int16",       "uint16",
    "int32",           "uint32",        "int64",         "uint64",      "complex32",
    "complex64",       "complex128",    "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu"};
static_assert(std::size(kDTypeNames) == static_cast<std::size_t>(DType::float8_e8m0fnu) + 1);

/// Returns "?" for a value without a name, which another process may send.
constexpr std::string_view to_string(DType dtype) noexcept {
  const auto index = static_cast<std::size_t>(dtype);
  return index < std::size(kDTypeNames) ? kDTypeNames[index] : "?";
}

}  // namespace acc
