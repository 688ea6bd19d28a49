// SPDX-License-Identifier: Apache-2.0
#include "model/typed_gemm.hpp"

#include "model/kernels.hpp"
#include "random_values.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace train_gpt;

namespace {

std::vector<Bf16> rounded(const std::vector<float>& values) {
  std::vector<Bf16> result(values.size());
  narrow(values.data(), result.data(), static_cast<std::int64_t>(values.size()));
  return result;
}

std::vector<float> widened(const std::vector<Bf16>& values) {
  std::vector<float> result(values.size());
  widen(values.data(), result.data(), static_cast<std::int64_t>(values.size()));
  return result;
}

}  // namespace

TEST_CASE("bfloat16 rounds to nearest even and keeps NaN and infinity") {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1.0f,       1.0f + 0x1p-8f, 1.0f + 0x3p-8f,
                                     -0x1p-133f, infinity,       3.4e38f};
  const std::vector<float> expected = {1.0f, 1.0f, 1.0f + 0x1p-6f, -0x1p-133f, infinity, infinity};
  CHECK(widened(rounded(values)) == expected);
  CHECK(std::isnan(widened(rounded({std::numeric_limits<float>::quiet_NaN()}))[0]));
}

TEST_CASE("bfloat16 products equal the products of the rounded operands") {
  if (!has_bf16_products()) {
    MESSAGE("skipped: this CPU has no bfloat16 instructions");
    return;
  }
  constexpr std::int64_t kRows = 37;
  constexpr std::int64_t kInner = 29;
  constexpr std::int64_t kCols = 50;
  const auto a = rounded(random_values(kRows * kInner, 1));
  const auto wide_a = widened(a);
  for (const float beta : {0.0f, 1.0f}) {
    for (const bool transposed : {false, true}) {
      CAPTURE(beta);
      CAPTURE(transposed);
      // The same memory, read directly or as its transpose.
      const std::int64_t rows = transposed ? kInner : kRows;
      const std::int64_t inner = transposed ? kRows : kInner;
      const auto right = rounded(random_values(inner * kCols, 4));
      const auto wide_right = widened(right);
      std::vector<float> expected = random_values(rows * kCols, 3);
      std::vector<float> out = expected;
      const ConstMatrix left32(wide_a.data(), kRows, kInner);
      const ConstBf16Matrix left16(a.data(), kRows, kInner);
      multiply({expected.data(), rows, kCols}, transposed ? left32.t() : left32,
               {wide_right.data(), inner, kCols}, beta);
      multiply(Matrix(out.data(), rows, kCols), transposed ? left16.t() : left16,
               {right.data(), inner, kCols}, beta);
      for (std::size_t i = 0; i < out.size(); ++i) {
        CHECK(out[i] == doctest::Approx(expected[i]).epsilon(1e-4));
      }
    }
  }
}
