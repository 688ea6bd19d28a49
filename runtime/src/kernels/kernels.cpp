// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.hpp"

#include "acc/base/error.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#ifdef __x86_64__
#include <cpuid.h>
#endif

// Selects the variant of the kernels at run time, so that one binary uses AVX-512 or AVX2 where the
// CPU has it and still runs on any x86-64 CPU. Each variant is compiled from kernels_body.inc in
// its own object file.
namespace acc::kernels {

namespace generic {
extern const Kernels table;
}
#ifdef __x86_64__
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

namespace {

#ifdef __x86_64__
/// As clang 14 does not know it in __builtin_cpu_supports.
bool has_f16c() noexcept {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

/// Variants that this CPU supports, fastest first. The generic one is always there.
struct Available {
  std::array<const Kernels*, 3> variants{};
  std::size_t count = 0;

  Available() noexcept {
#ifdef __x86_64__
    __builtin_cpu_init();
    // __builtin_cpu_supports also checks that the operating system saves the wide registers
    // (XGETBV).
    const bool has_avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      variants[count++] = &avx512::table;
    }
    if (has_avx2) {
      variants[count++] = &avx2::table;
    }
#endif
    variants[count++] = &generic::table;
  }
};

const Available& available() noexcept {
  static const Available found;
  return found;
}

bool is_half(DType dtype) noexcept {
  return dtype == DType::bfloat16 || dtype == DType::float16;
}

void narrow(const float* from, void* to, DType dtype, std::size_t numel) {
  const auto& table = kernels();
  (dtype == DType::bfloat16 ? table.f32_to_bf16 : table.f32_to_f16)(
      from, static_cast<std::uint16_t*>(to), numel);
}

void widen(const void* from, DType dtype, float* to, std::size_t numel) {
  const auto& table = kernels();
  (dtype == DType::bfloat16 ? table.bf16_to_f32 : table.f16_to_f32)(
      static_cast<const std::uint16_t*>(from), to, numel);
}

/// Converts between the two 16-bit dtypes in blocks of float32 that stay in the L1 cache.
void cast_halves(const std::uint16_t* from, DType from_dtype, std::uint16_t* to, DType to_dtype,
                 std::size_t numel) {
  std::array<float, 1024> block;
  for (std::size_t begin = 0; begin < numel; begin += block.size()) {
    const std::size_t count = std::min(block.size(), numel - begin);
    widen(from + begin, from_dtype, block.data(), count);
    narrow(block.data(), to + begin, to_dtype, count);
  }
}

}  // namespace

void cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel) {
  if (from_dtype == to_dtype) {
    if (to != from) {
      std::memcpy(to, from, numel * nbytes_of(to_dtype));
    }
  } else if (from_dtype == DType::float32 && is_half(to_dtype)) {
    narrow(static_cast<const float*>(from), to, to_dtype, numel);
  } else if (is_half(from_dtype) && to_dtype == DType::float32) {
    widen(from, from_dtype, static_cast<float*>(to), numel);
  } else if (is_half(from_dtype) && is_half(to_dtype)) {
    cast_halves(static_cast<const std::uint16_t*>(from), from_dtype,
                static_cast<std::uint16_t*>(to), to_dtype, numel);
  } else {
    throw Error(Errc::internal, "no cast from " + std::string(to_string(from_dtype)) + " to " +
                                    std::string(to_string(to_dtype)));
  }
}

std::string_view to_string(Element element) noexcept {
  constexpr std::array<std::string_view, kNumElements> kNames = {
      "float32", "bfloat16", "float16", "float64", "int8",
      "int16",   "int32",    "int64",   "uint8",   "bool"};
  const auto index = static_cast<std::size_t>(element);
  return index < kNames.size() ? kNames[index] : "?";
}

std::string_view to_string(ElementOp op) noexcept {
  constexpr std::array<std::string_view, kNumElementOps> kNames = {
      "sum", "average",     "product",    "min",
      "max", "bitwise and", "bitwise or", "bitwise exclusive or"};
  const auto index = static_cast<std::size_t>(op);
  return index < kNames.size() ? kNames[index] : "?";
}

void Kernels::update(const UpdateStep& step, const UpdateArrays& arrays, std::size_t begin,
                     std::size_t numel) const {
  std::visit([&](const auto& each) { updates[step.index()](&each, arrays, begin, numel); }, step);
}

void Kernels::update_packed(const UpdateStep& step, const UpdateArrays& arrays,
                            const PackedRange& range, std::size_t numel) const {
  std::visit([&](const auto& each) { packed_updates[step.index()](&each, arrays, range, numel); },
             step);
}

UpdateStep adjusted(const UpdateStep& step, const float* clip, bool decays) {
  UpdateStep own = step;
  std::visit(
      [&](auto& each) {
        each.grad_scale *= clip != nullptr ? *clip : 1.0F;
        each.decay = decays ? each.decay : each.kNoDecay;
      },
      own);
  return own;
}

const Kernels& kernels() noexcept {
  return *available().variants[0];
}

std::span<const Kernels* const> available_kernels() noexcept {
  return {available().variants.data(), available().count};
}

void reduce_doubles(ReduceOp op, std::span<const double* const> sources,
                    std::span<double* const> destinations, std::size_t numel) noexcept {
  for (std::size_t i = 0; i < numel; ++i) {
    double result = sources[0][i];
    for (const double* source : sources.subspan(1)) {
      result = op == ReduceOp::sum ? result + source[i] : std::max(result, source[i]);
    }
    for (double* destination : destinations) {
      destination[i] = result;
    }
  }
}

}  // namespace acc::kernels
