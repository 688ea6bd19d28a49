// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace acc::checkpoint {

/// Type of the elements of a stored tensor. All formats here store them in little-endian order. The
/// order is that of safetensors, whose writer sorts by it; c32 and c128 are not part of that
/// format.
enum class Dtype : std::uint8_t {
  boolean,
  f4_e2m1_x2,  ///< two values in a byte; shapes count bytes, except in safetensors headers
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
  c32,
  c128
};

/// Returns the number of bytes of an element.
std::size_t size_of(Dtype dtype) noexcept;
/// True if values can be converted to and from fp32: f32, f16, bf16, f64.
bool is_real(Dtype dtype) noexcept;
/// True if torch can compute gradients for it: floats of any size and complex numbers.
bool is_trainable(Dtype dtype) noexcept;

/// Name in safetensors headers: "F32", "BF16", "F8_E4M3". Empty if safetensors has none.
std::string_view safetensors_name(Dtype dtype) noexcept;
std::optional<Dtype> dtype_of_safetensors(std::string_view name) noexcept;
/// Number of values in an element, which safetensors headers count in the last dimension: 2 for
/// f4_e2m1_x2, else 1.
std::int64_t values_per_element(Dtype dtype) noexcept;

/// Name as an attribute of the Python module torch: "float32", "bfloat16", "float8_e4m3fn".
std::string_view torch_name(Dtype dtype) noexcept;
std::optional<Dtype> dtype_of_torch(std::string_view name) noexcept;

/// Name of torch's typed storage class: "FloatStorage". Absent for dtypes that torch saves as
/// UntypedStorage (u16, u32, u64, f8, f4, c32).
std::optional<std::string_view> torch_storage(Dtype dtype) noexcept;
std::optional<Dtype> dtype_of_torch_storage(std::string_view name) noexcept;

/// Converts `numel` values. from, to: [numel], any alignment, no overlap. Equal dtypes are copied.
/// Other pairs must be real dtypes (is_real); they are rounded to nearest even by way of fp32, also
/// between f64 and the others. Throws Error(not_supported) for other pairs.
void convert(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::size_t numel);

}  // namespace acc::checkpoint
