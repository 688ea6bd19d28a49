// SPDX-License-Identifier: Apache-2.0
#include "model/convert_values.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace acc::model {
namespace {

#include "acc/base/half_conversions.inc"

/// A value of any dtype. long double holds every integer of 64 bits and every double.
struct Number {
  long double real = 0, imaginary = 0;
};
static_assert(std::numeric_limits<long double>::digits >= 64);

bool is_floating(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32:
    case DType::bfloat16:
    case DType::float16:
    case DType::float64:
    case DType::complex32:
    case DType::complex64:
    case DType::complex128: return true;
    default: return false;
  }
}

/// Part number `part` of a complex number, or a number.
template <typename T>
T part_of(const std::byte* at, int part = 0) {
  T value;
  std::memcpy(&value, at + part * sizeof(T), sizeof(T));
  return value;
}

Number number_at(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::float32: return {part_of<float>(at)};
    case DType::bfloat16: return {from_bf16(part_of<std::uint16_t>(at))};
    case DType::float16: return {from_f16(part_of<std::uint16_t>(at))};
    case DType::float64: return {part_of<double>(at)};
    case DType::boolean: return {part_of<std::uint8_t>(at) != 0 ? 1.0L : 0.0L};
    case DType::int8: return {static_cast<long double>(part_of<std::int8_t>(at))};
    case DType::int16: return {static_cast<long double>(part_of<std::int16_t>(at))};
    case DType::uint16: return {static_cast<long double>(part_of<std::uint16_t>(at))};
    case DType::int32: return {static_cast<long double>(part_of<std::int32_t>(at))};
    case DType::uint32: return {static_cast<long double>(part_of<std::uint32_t>(at))};
    case DType::int64: return {static_cast<long double>(part_of<std::int64_t>(at))};
    case DType::uint64: return {static_cast<long double>(part_of<std::uint64_t>(at))};
    case DType::complex32:
      return {from_f16(part_of<std::uint16_t>(at)), from_f16(part_of<std::uint16_t>(at, 1))};
    case DType::complex64: return {part_of<float>(at), part_of<float>(at, 1)};
    case DType::complex128: return {part_of<double>(at), part_of<double>(at, 1)};
    default: return {static_cast<long double>(part_of<std::uint8_t>(at))};
  }
}

/// True if a value may be stored in place of `value`: it is the same, or rounded, or both are NaN.
bool stands_for(long double found, long double value, bool rounds) {
  return rounds || found == value || std::isnan(value);
}

template <typename T>
bool put(std::byte* at, long double value, bool rounds, int part = 0) {
  if constexpr (std::is_integral_v<T>) {
    if (!(value >= std::numeric_limits<T>::min() && value <= std::numeric_limits<T>::max()) ||
        value != std::trunc(value)) {  // NaN fails the first comparison
      return false;
    }
  }
  const T stored = static_cast<T>(value);
  std::memcpy(at + part * sizeof(T), &stored, sizeof(T));
  return std::is_integral_v<T> || stands_for(stored, value, rounds);
}

bool put_half(std::byte* at, long double value, bool rounds, int part = 0) {
  const std::uint16_t stored = to_f16(static_cast<float>(value));
  std::memcpy(at + part * sizeof(stored), &stored, sizeof(stored));
  return stands_for(from_f16(stored), value, rounds);
}

bool put_bfloat16(std::byte* at, long double value, bool rounds) {
  const std::uint16_t stored = to_bf16(static_cast<float>(value));
  std::memcpy(at, &stored, sizeof(stored));
  return stands_for(from_bf16(stored), value, rounds);
}

/// Returns false if the dtype cannot hold the number.
bool put_number(std::byte* at, DType dtype, Number number, bool rounds) {
  switch (dtype) {
    case DType::complex32:
      return put_half(at, number.real, rounds) && put_half(at, number.imaginary, rounds, 1);
    case DType::complex64:
      return put<float>(at, number.real, rounds) && put<float>(at, number.imaginary, rounds, 1);
    case DType::complex128:
      return put<double>(at, number.real, rounds) && put<double>(at, number.imaginary, rounds, 1);
    default: break;
  }
  if (number.imaginary != 0) {
    return false;
  }
  switch (dtype) {
    case DType::float32: return put<float>(at, number.real, rounds);
    case DType::bfloat16: return put_bfloat16(at, number.real, rounds);
    case DType::float16: return put_half(at, number.real, rounds);
    case DType::float64: return put<double>(at, number.real, rounds);
    case DType::boolean: return number.real <= 1 && put<std::uint8_t>(at, number.real, rounds);
    case DType::int8: return put<std::int8_t>(at, number.real, rounds);
    case DType::int16: return put<std::int16_t>(at, number.real, rounds);
    case DType::uint16: return put<std::uint16_t>(at, number.real, rounds);
    case DType::int32: return put<std::int32_t>(at, number.real, rounds);
    case DType::uint32: return put<std::uint32_t>(at, number.real, rounds);
    case DType::int64: return put<std::int64_t>(at, number.real, rounds);
    case DType::uint64: return put<std::uint64_t>(at, number.real, rounds);
    default: return put<std::uint8_t>(at, number.real, rounds);
  }
}

}  // namespace

bool converts(DType from, DType to) noexcept {
  return from == to || (from < DType::float8_e4m3fn && to < DType::float8_e4m3fn);
}

std::optional<std::size_t> convert_values(const void* from, DType from_dtype, void* to,
                                          DType to_dtype, std::size_t numel) {
  if (numel == 0) {  // the pointers may be null
    return std::nullopt;
  }
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, numel * nbytes_of(to_dtype));
    return std::nullopt;
  }
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  const bool rounds = is_floating(from_dtype) && is_floating(to_dtype);
  for (std::size_t i = 0; i < numel; ++i) {
    if (!converts(from_dtype, to_dtype) ||
        !put_number(target + i * nbytes_of(to_dtype), to_dtype,
                    number_at(source + i * nbytes_of(from_dtype), from_dtype), rounds)) {
      return i;
    }
  }
  return std::nullopt;
}

}  // namespace acc::model
