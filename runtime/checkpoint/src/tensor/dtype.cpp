// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/tensor/dtype.hpp"

#include <algorithm>

namespace acc::checkpoint {
namespace {

struct Row {
  Dtype dtype;
  std::size_t nbytes;
  std::string_view safetensors, torch, storage;
};

// Rows are in the order of the enumerators (checked below). An empty storage class means that torch
// saves the dtype as UntypedStorage.
constexpr Row kRows[] = {
    {Dtype::boolean, 1, "BOOL", "bool", "BoolStorage"},
    {Dtype::f4_e2m1_x2, 1, "F4", "float4_e2m1fn_x2", ""},
    {Dtype::u8, 1, "U8", "uint8", "ByteStorage"},
    {Dtype::i8, 1, "I8", "int8", "CharStorage"},
    {Dtype::f8_e5m2, 1, "F8_E5M2", "float8_e5m2", ""},
    {Dtype::f8_e4m3, 1, "F8_E4M3", "float8_e4m3fn", ""},
    {Dtype::f8_e8m0, 1, "F8_E8M0", "float8_e8m0fnu", ""},
    {Dtype::f8_e4m3fnuz, 1, "F8_E4M3FNUZ", "float8_e4m3fnuz", ""},
    {Dtype::f8_e5m2fnuz, 1, "F8_E5M2FNUZ", "float8_e5m2fnuz", ""},
    {Dtype::i16, 2, "I16", "int16", "ShortStorage"},
    {Dtype::u16, 2, "U16", "uint16", ""},
    {Dtype::f16, 2, "F16", "float16", "HalfStorage"},
    {Dtype::bf16, 2, "BF16", "bfloat16", "BFloat16Storage"},
    {Dtype::i32, 4, "I32", "int32", "IntStorage"},
    {Dtype::u32, 4, "U32", "uint32", ""},
    {Dtype::f32, 4, "F32", "float32", "FloatStorage"},
    {Dtype::c64, 8, "C64", "complex64", "ComplexFloatStorage"},
    {Dtype::f64, 8, "F64", "float64", "DoubleStorage"},
    {Dtype::i64, 8, "I64", "int64", "LongStorage"},
    {Dtype::u64, 8, "U64", "uint64", ""},
    {Dtype::c32, 4, "", "complex32", ""},
    {Dtype::c128, 16, "", "complex128", "ComplexDoubleStorage"},
};

constexpr const Row& row_of(Dtype dtype) noexcept {
  return kRows[static_cast<std::size_t>(dtype)];
}

static_assert(std::ranges::all_of(kRows,
                                  [](const Row& row) { return &row_of(row.dtype) == &row; }));

// Returns the dtype whose column holds the name.
std::optional<Dtype> find(std::string_view Row::*column, std::string_view name) noexcept {
  for (const Row& row : kRows) {
    if (!name.empty() && row.*column == name) {
      return row.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace

std::size_t size_of(Dtype dtype) noexcept {
  return row_of(dtype).nbytes;
}

// Smaller floats and complex numbers are not included: they are copied, but never converted.
bool is_real(Dtype dtype) noexcept {
  return dtype == Dtype::f32 || dtype == Dtype::f16 || dtype == Dtype::bf16 || dtype == Dtype::f64;
}

bool is_trainable(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::boolean:
    case Dtype::u8:
    case Dtype::i8:
    case Dtype::i16:
    case Dtype::u16:
    case Dtype::i32:
    case Dtype::u32:
    case Dtype::i64:
    case Dtype::u64: return false;
    default: return true;
  }
}

std::string_view safetensors_name(Dtype dtype) noexcept {
  return row_of(dtype).safetensors;
}

std::optional<Dtype> dtype_of_safetensors(std::string_view name) noexcept {
  return find(&Row::safetensors, name);
}

std::int64_t values_per_element(Dtype dtype) noexcept {
  return dtype == Dtype::f4_e2m1_x2 ? 2 : 1;
}

std::string_view torch_name(Dtype dtype) noexcept {
  return row_of(dtype).torch;
}

std::optional<Dtype> dtype_of_torch(std::string_view name) noexcept {
  return find(&Row::torch, name);
}

std::optional<std::string_view> torch_storage(Dtype dtype) noexcept {
  const std::string_view name = row_of(dtype).storage;
  return name.empty() ? std::nullopt : std::optional(name);
}

std::optional<Dtype> dtype_of_torch_storage(std::string_view name) noexcept {
  return find(&Row::storage, name);
}

}  // namespace acc::checkpoint
