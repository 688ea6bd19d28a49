// SPDX-License-Identifier: Apache-2.0
#include "model/convert_values.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>

using acc::DType;

TEST_CASE("conversions of buffers keep every integer, or refuse it") {
  const auto convert = [](auto value, DType from, auto& found, DType to) {
    return !acc::model::convert_values(&value, from, &found, to, 1);
  };
  const std::int64_t large = (std::int64_t{1} << 53) + 1;
  std::uint64_t u64 = 0;
  std::int64_t i64 = 0;
  double f64 = 0;
  float f32 = 0;
  CHECK(convert(large, DType::int64, u64, DType::uint64));
  CHECK(u64 == static_cast<std::uint64_t>(large));
  CHECK(!convert(large, DType::int64, f64, DType::float64));
  CHECK(convert(large - 1, DType::int64, f64, DType::float64));
  CHECK(!convert(std::int64_t{-1}, DType::int64, u64, DType::uint64));
  CHECK(!convert(std::numeric_limits<std::uint64_t>::max(), DType::uint64, i64, DType::int64));
  CHECK(!convert(9223372036854775808.0, DType::float64, i64, DType::int64));
  CHECK(convert(-9223372036854775808.0, DType::float64, i64, DType::int64));
  CHECK(!convert(std::nan(""), DType::float64, i64, DType::int64));
  CHECK(convert(std::nan(""), DType::float64, f32, DType::float32));
  CHECK(std::isnan(f32));
  const float complex[] = {1.0F, 2.0F};
  CHECK(acc::model::convert_values(complex, DType::complex64, &f32, DType::float32, 1));
  CHECK(!acc::model::converts(DType::float8_e5m2, DType::float32));
  CHECK(acc::model::converts(DType::float8_e5m2, DType::float8_e5m2));
}
