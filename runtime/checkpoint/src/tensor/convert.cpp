// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/tensor/dtype.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

// Converts between dtypes in chunks through an aligned fp32 buffer, in loops that the compiler
// vectorizes. Source and destination may have any alignment, because they may be pages of a mapped
// file.
namespace acc::checkpoint {
namespace {

#include "acc/base/half_conversions.inc"

constexpr std::size_t kChunk = 2048;  // elements converted at a time

// Converts values at any address to aligned fp32.
void widen(const std::byte* from, Dtype dtype, std::span<float> to) {
  if (dtype == Dtype::f32) {
    std::memcpy(to.data(), from, to.size_bytes());
  } else if (dtype == Dtype::f64) {
    std::array<double, kChunk> values;
    std::memcpy(values.data(), from, to.size() * sizeof(double));
    std::transform(values.begin(), values.begin() + std::ssize(to), to.begin(),
                   [](double value) { return static_cast<float>(value); });
  } else {
    std::array<std::uint16_t, kChunk> values;
    std::memcpy(values.data(), from, to.size() * sizeof(std::uint16_t));
    const auto* begin = values.data();
    if (dtype == Dtype::bf16) {
      std::transform(begin, begin + to.size(), to.begin(), from_bf16);
    } else {
      std::transform(begin, begin + to.size(), to.begin(), from_f16);
    }
  }
}

// Converts aligned fp32 to values at any address.
void narrow(std::span<const float> from, std::byte* to, Dtype dtype) {
  if (dtype == Dtype::f32) {
    std::memcpy(to, from.data(), from.size_bytes());
  } else if (dtype == Dtype::f64) {
    std::array<double, kChunk> values;
    std::copy(from.begin(), from.end(), values.begin());
    std::memcpy(to, values.data(), from.size() * sizeof(double));
  } else {
    std::array<std::uint16_t, kChunk> values;
    if (dtype == Dtype::bf16) {
      std::transform(from.begin(), from.end(), values.begin(), to_bf16);
    } else {
      std::transform(from.begin(), from.end(), values.begin(), to_f16);
    }
    std::memcpy(to, values.data(), from.size() * sizeof(std::uint16_t));
  }
}

}  // namespace

void convert(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::size_t numel) {
  if (numel == 0) {
    return;
  }
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, numel * size_of(to_dtype));
    return;
  }
  if (!is_real(from_dtype) || !is_real(to_dtype)) {
    throw Error(Errc::not_supported, "cannot convert " + std::string(torch_name(from_dtype)) +
                                         " to " + std::string(torch_name(to_dtype)) +
                                         ": expected float32, float16, bfloat16 or float64");
  }
  const auto* source = static_cast<const std::byte*>(from);
  auto* destination = static_cast<std::byte*>(to);
  std::array<float, kChunk> values;
  while (numel > 0) {
    const std::size_t count = std::min(numel, kChunk);
    widen(source, from_dtype, std::span(values).first(count));
    narrow(std::span(values).first(count), destination, to_dtype);
    source += count * size_of(from_dtype);
    destination += count * size_of(to_dtype);
    numel -= count;
  }
}

}  // namespace acc::checkpoint
