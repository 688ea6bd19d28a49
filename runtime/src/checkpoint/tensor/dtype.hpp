#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace acc::checkpoint {

/// What elements of stored tensors are. All little endian.
enum class Dtype : std::uint8_t {
  boolean,
  u8,
  i8,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  i64,
  u64,
  f64,
  f8_e4m3,
  f8_e5m2
};

/// Bytes of an element.
std::size_t size_of(Dtype dtype) noexcept;
/// Whether values can be converted to and from fp32: f32, f16, bf16, f64.
bool is_real(Dtype dtype) noexcept;

/// "F32", "BF16", "F8_E4M3" (safetensors).
std::string_view safetensors_name(Dtype dtype) noexcept;
std::optional<Dtype> dtype_of_safetensors(std::string_view name) noexcept;

/// "float32", "bfloat16", "float8_e4m3fn" (the attribute of module torch).
std::string_view torch_name(Dtype dtype) noexcept;
std::optional<Dtype> dtype_of_torch(std::string_view name) noexcept;

/// "FloatStorage"; absent for the dtypes that torch saves as UntypedStorage (u16, u32, u64, f8).
std::optional<std::string_view> torch_storage(Dtype dtype) noexcept;
std::optional<Dtype> dtype_of_torch_storage(std::string_view name) noexcept;

/// values: [numel] each, no overlap, any alignment. Reals to nearest even through fp32 (f64 to and
/// from the others; the same dtype copies). Throws Error(config) for other pairs.
void convert(const void* from, Dtype from_dtype, void* to, Dtype to_dtype, std::size_t numel);

}  // namespace acc::checkpoint
