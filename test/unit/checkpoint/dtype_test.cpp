// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/tensor/dtype.hpp"

#include "acc/base/error.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

using namespace acc::checkpoint;

namespace {

constexpr Dtype kAll[] = {Dtype::boolean,     Dtype::u8,      Dtype::i8,         Dtype::i16,
                          Dtype::u16,         Dtype::f16,     Dtype::bf16,       Dtype::i32,
                          Dtype::u32,         Dtype::f32,     Dtype::i64,        Dtype::u64,
                          Dtype::f64,         Dtype::f8_e4m3, Dtype::f8_e5m2,    Dtype::f8_e4m3fnuz,
                          Dtype::f8_e5m2fnuz, Dtype::f8_e8m0, Dtype::f4_e2m1_x2, Dtype::c32,
                          Dtype::c64,         Dtype::c128};

std::uint16_t to_16_bits(float value, Dtype dtype) {
  std::uint16_t bits = 0;
  convert(&value, Dtype::f32, &bits, dtype, 1);
  return bits;
}

}  // namespace

TEST_CASE("every dtype is found by each of its names") {
  for (const Dtype dtype : kAll) {
    CAPTURE(torch_name(dtype));
    if (!safetensors_name(dtype).empty()) {
      CHECK(dtype_of_safetensors(safetensors_name(dtype)) == dtype);
    }
    CHECK(dtype_of_torch(torch_name(dtype)) == dtype);
    if (const auto storage = torch_storage(dtype)) {
      CHECK(dtype_of_torch_storage(*storage) == dtype);
    }
  }
  CHECK(safetensors_name(Dtype::f8_e4m3) == "F8_E4M3");
  CHECK(torch_name(Dtype::bf16) == "bfloat16");
  CHECK(torch_storage(Dtype::i64) == "LongStorage");
  CHECK_FALSE(torch_storage(Dtype::u16));
  for (const char* unknown : {"", "F31", "float", "f32"}) {
    CHECK_FALSE(dtype_of_safetensors(unknown));
    CHECK_FALSE(dtype_of_torch(unknown));
    CHECK_FALSE(dtype_of_torch_storage(unknown));
  }
}

TEST_CASE("sizes of elements") {
  const std::size_t nbytes[] = {1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 8, 8, 8, 1, 1, 1, 1, 1, 1, 4, 8, 16};
  for (std::size_t i = 0; i < std::size(kAll); ++i) {
    CHECK(size_of(kAll[i]) == nbytes[i]);
  }
}

TEST_CASE("reals are rounded to nearest even") {
  struct Row {
    float value;
    std::uint16_t f16, bf16;
  };
  const float infinity = std::numeric_limits<float>::infinity();
  const Row rows[] = {
      {0.0F, 0x0000, 0x0000},        {-0.0F, 0x8000, 0x8000},     {1.0F, 0x3C00, 0x3F80},
      {1.00390625F, 0x3C04, 0x3F80},  // a tie in bfloat16, to the even one below
      {1.01171875F, 0x3C0C, 0x3F82},  // to the even one above
      {2049.0F, 0x6800, 0x4500},      // a tie in float16
      {65520.0F, 0x7C00, 0x4780},     // beyond float16
      {infinity, 0x7C00, 0x7F80},    {-infinity, 0xFC00, 0xFF80},
  };
  for (const Row& row : rows) {
    CAPTURE(row.value);
    CHECK(to_16_bits(row.value, Dtype::f16) == row.f16);
    CHECK(to_16_bits(row.value, Dtype::bf16) == row.bf16);
  }
}

TEST_CASE("any two real dtypes convert at any address and in any number") {
  constexpr Dtype kReals[] = {Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::f64};
  std::mt19937 generator(5);
  for (const Dtype from : kReals) {
    for (const Dtype to : kReals) {
      for (const std::size_t numel : {0U, 1U, 7U, 5000U}) {
        // Small integers are exact in all dtypes.
        std::vector<double> values(numel);
        for (double& value : values) {
          value = static_cast<double>(generator() % 513) - 256.0;
        }
        std::vector<std::byte> source(1 + numel * size_of(from)), result(3 + numel * size_of(to));
        convert(values.data(), Dtype::f64, source.data() + 1, from, numel);
        convert(source.data() + 1, from, result.data() + 3, to, numel);
        std::vector<double> back(numel);
        convert(result.data() + 3, to, back.data(), Dtype::f64, numel);
        CHECK(back == values);
      }
    }
  }
}

TEST_CASE("NaN stays NaN, and float64 goes through float32") {
  const double values[] = {std::nan(""), 0.1, 1e300};
  float singles[3];
  convert(values, Dtype::f64, singles, Dtype::f32, 3);
  CHECK(std::isnan(singles[0]));
  CHECK(singles[1] == 0.1F);
  CHECK(std::isinf(singles[2]));
  std::uint16_t bits[3];
  convert(values, Dtype::f64, bits, Dtype::bf16, 3);
  CHECK((bits[0] & 0x7FFFU) > 0x7F80U);
  CHECK(bits[1] == 0x3DCD);
}

TEST_CASE("dtypes that are not real numbers are copied, or refused by name") {
  const std::int64_t values[] = {7, -9};
  std::int64_t copy[2] = {};
  convert(values, Dtype::i64, copy, Dtype::i64, 2);
  CHECK(std::memcmp(values, copy, sizeof values) == 0);
  float single = 0;
  CHECK_THROWS_WITH_AS(convert(values, Dtype::i64, &single, Dtype::f32, 1),
                       "cannot convert int64 to float32: expected float32, float16, bfloat16 or "
                       "float64",
                       acc::Error);
  CHECK_THROWS_AS(convert(&single, Dtype::f32, copy, Dtype::boolean, 1), acc::Error);
}
