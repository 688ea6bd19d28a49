// SPDX-License-Identifier: Apache-2.0
#include "kernels/kernels.hpp"

#include "acc/base/error.hpp"
#include "kernels/orthogonalize.hpp"
#include "kernels/packed_states.hpp"
#include "kernels/stream_copy.hpp"
#include "support/update_steps.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

using acc::DType;
using acc::ReduceOp;
using namespace acc::kernels;

namespace {

const std::size_t kSizes[] = {0, 1, 7, 15, 16, 17, 63, 64, 65, 130, 1000, 4099};

std::vector<float> random_values(std::size_t numel, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(numel);
  std::generate(values.begin(), values.end(), [&] { return normal(generator); });
  return values;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Sources of a reduction, one element off a vector boundary, with guard elements after the result.
struct ReductionCase {
  std::vector<std::vector<float>> values;
  std::vector<std::vector<std::uint16_t>> halves;
  std::vector<const void*> sources;

  ReductionCase(int count, std::size_t numel, DType dtype, const Kernels& convert) {
    for (int k = 0; k < count; ++k) {
      values.push_back(random_values(numel + 1, static_cast<unsigned>(k + 1)));
      if (dtype == DType::float32) {
        continue;
      }
      auto& half = halves.emplace_back(numel + 1);
      (dtype == DType::bfloat16 ? convert.f32_to_bf16 : convert.f32_to_f16)(values.back().data(),
                                                                            half.data(), numel + 1);
      (dtype == DType::bfloat16 ? convert.bf16_to_f32 : convert.f16_to_f32)(
          half.data(), values.back().data(), numel + 1);
    }
    for (int k = 0; k < count; ++k) {
      const auto index = static_cast<std::size_t>(k);
      sources.push_back(dtype == DType::float32 ? static_cast<const void*>(values[index].data() + 1)
                                                : halves[index].data() + 1);
    }
  }

  [[nodiscard]] std::vector<float> expected(std::size_t numel, ReduceOp op, float scale) const {
    std::vector<float> result(values[0].begin() + 1, values[0].end());
    for (std::size_t k = 1; k < values.size(); ++k) {
      for (std::size_t i = 0; i < numel; ++i) {
        const float next = values[k][i + 1];
        result[i] = op == ReduceOp::sum ? result[i] + next : std::max(result[i], next);
      }
    }
    for (float& value : result) {
      value *= scale;
    }
    return result;
  }
};

void check_reduction(const Kernels& table, int count, std::size_t numel, DType dtype, ReduceOp op) {
  const ReductionCase input(count, numel, dtype, table);
  const float scale = count % 2 == 0 ? 0.3F : 1.0F;
  const auto once = input.expected(numel, op, scale);
  constexpr float kGuard = 77.0F;
  std::vector<float> first(numel + 2, kGuard);
  std::vector<float> second(numel + 2, kGuard);
  float* destinations[] = {first.data() + 1, second.data() + 1};
  Reduction task{input.sources, destinations, numel, dtype, op, scale, false};
  table.reduce(task);
  for (const auto* result : {&first, &second}) {
    CHECK(same_bits({result->data() + 1, numel}, once));
    CHECK(result->front() == kGuard);
    CHECK(result->back() == kGuard);
  }
  task.accumulate = true;
  table.reduce(task);
  std::vector<float> twice(once);
  double squares = 0.0;
  for (float& value : twice) {
    value += value;
    squares += static_cast<double>(value) * static_cast<double>(value);
  }
  CHECK(same_bits({first.data() + 1, numel}, twice));
  CHECK(table.squared_norm(first.data() + 1, numel) == doctest::Approx(squares).epsilon(1e-12));
}

}  // namespace

TEST_CASE("reductions sum in order, bitwise equal in every variant") {
  for (const Kernels* table : available_kernels()) {
    for (const std::size_t numel : kSizes) {
      for (const int count : {1, 2, 3, 5, 8}) {
        for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
          for (const ReduceOp op : {ReduceOp::sum, ReduceOp::max}) {
            CAPTURE(std::string(table->name));
            CAPTURE(numel);
            CAPTURE(count);
            check_reduction(*table, count, numel, dtype, op);
          }
        }
      }
    }
  }
}

TEST_CASE("a reduction may write over one of its sources") {
  for (const Kernels* table : available_kernels()) {
    auto a = random_values(333, 1);
    const auto b = random_values(333, 2);
    const auto original = a;
    const void* sources[] = {b.data(), a.data()};
    float* destinations[] = {a.data()};
    table->reduce({sources, destinations, a.size()});
    for (std::size_t i = 0; i < a.size(); ++i) {
      REQUIRE(a[i] == b[i] + original[i]);
    }
  }
}

TEST_CASE("doubles are reduced in order to every destination") {
  const double a[] = {1.0, -2.0, 1e300};
  const double b[] = {0.5, 7.0, 1e300};
  double out[2][3];
  const double* sources[] = {a, b};
  double* destinations[] = {out[0], out[1]};
  reduce_doubles(ReduceOp::sum, sources, destinations, 3);
  CHECK(out[0][0] == 1.5);
  CHECK(out[1][1] == 5.0);
  CHECK(out[1][2] == 2e300);
  reduce_doubles(ReduceOp::max, sources, destinations, 3);
  CHECK(out[0][0] == 1.0);
  CHECK(out[1][1] == 7.0);
}

TEST_CASE("the squared norm is taken in double") {
  for (const Kernels* table : available_kernels()) {
    // A sum in fp32 would stop growing at 2^24.
    const std::vector<float> ones((1U << 24) + 5, 1.0F);
    CHECK(table->squared_norm(ones.data(), ones.size()) == static_cast<double>(ones.size()));
    const float large[] = {1e30F};
    CHECK(table->squared_norm(large, 1) == doctest::Approx(1e60));
  }
}

TEST_CASE("scale multiplies in place") {
  for (const Kernels* table : available_kernels()) {
    auto values = random_values(131, 3);
    auto expected = values;
    for (float& value : expected) {
      value *= 0.1F;
    }
    table->scale(values.data(), 0.1F, values.size());
    CHECK(same_bits(values, expected));
  }
}

TEST_CASE("values are clipped after scaling, and NaN is kept") {
  for (const Kernels* table : available_kernels()) {
    CAPTURE(table->name);
    std::vector<float> values(35);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(i) - 17.0F;
    }
    values[3] = std::numeric_limits<float>::quiet_NaN();
    values[4] = std::numeric_limits<float>::infinity();
    table->scale_clamped(values.data(), 0.5F, 6.25F, values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      CAPTURE(i);
      const float scaled = 0.5F * (static_cast<float>(i) - 17.0F);
      if (i == 3) {
        CHECK(std::isnan(values[i]));
      } else {
        CHECK(values[i] == (i == 4 ? 6.25F : std::clamp(scaled, -6.25F, 6.25F)));
      }
    }
  }
}

TEST_CASE("bf16 rounds to nearest even and keeps NaN") {
  struct Row {
    std::uint32_t from;
    std::uint16_t to;
  };
  const Row rows[] = {
      {0x3f800000, 0x3f80},  // 1
      {0x3f808000, 0x3f80},  // tie, down to even
      {0x3f818000, 0x3f82},  // tie, up to even
      {0x3f808001, 0x3f81},  // above the tie
      {0x7f7fffff, 0x7f80},  // largest float overflows to infinity
      {0xff800000, 0xff80},  // -infinity
      {0x7f800001, 0x7fc0},  // NaN whose payload would be cut off
      {0xffc12345, 0xffc1},  // NaN keeps sign and upper payload
      {0x80000000, 0x8000},  // -0
      {0x00018000, 0x0002},  // subnormal tie
  };
  for (const Kernels* table : available_kernels()) {
    for (const Row& row : rows) {
      // 40 copies: both the vector loop and its tail see the value.
      const std::vector<float> from(40, std::bit_cast<float>(row.from));
      std::vector<std::uint16_t> to(from.size());
      table->f32_to_bf16(from.data(), to.data(), from.size());
      CAPTURE(row.from);
      CHECK(std::all_of(to.begin(), to.end(), [&](auto value) { return value == row.to; }));
    }
  }
}

TEST_CASE("stream_copy copies every length from and to every alignment") {
  std::vector<std::byte> from(20000);
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  for (const std::size_t length : {0, 1, 63, 4095, 4096, 4097, 4159, 8192, 12345}) {
    for (std::size_t offset = 0; offset < 64; offset += 5) {
      std::vector<std::byte> to(from.size());
      acc::kernels::stream_copy(to.data() + offset, from.data() + 3, length);
      CAPTURE(length);
      CAPTURE(offset);
      const auto begin = to.begin() + static_cast<std::ptrdiff_t>(offset);
      const auto end = begin + static_cast<std::ptrdiff_t>(length);
      CHECK(std::equal(begin, end, from.begin() + 3));
      const auto untouched = [](std::byte value) { return value == std::byte{0}; };
      CHECK(std::all_of(to.begin(), begin, untouched));
      CHECK(std::all_of(end, to.end(), untouched));
    }
  }
}

TEST_CASE("all 65536 float16 values survive conversion to fp32 and back") {
  std::vector<std::uint16_t> all(65536);
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = static_cast<std::uint16_t>(i);
  }
  // From 1 and in odd lengths, so that vector loops and tails take different elements.
  for (const Kernels* table : available_kernels()) {
    for (const std::size_t length : {std::size_t{65535}, std::size_t{5}}) {
      for (std::size_t begin = 1; begin + length <= all.size(); begin += length) {
        std::vector<float> wide(length);
        std::vector<std::uint16_t> back(length);
        table->f16_to_f32(all.data() + begin, wide.data(), length);
        table->f32_to_f16(wide.data(), back.data(), length);
        for (std::size_t i = 0; i < length; ++i) {
          const auto half = all[begin + i];
          const int exponent = (half >> 10) & 31;
          const int mantissa = half & 1023;
          const bool nan = exponent == 31 && mantissa != 0;
          REQUIRE(back[i] == (nan ? half | 0x200 : half));
          if (exponent != 31) {
            const double value = exponent == 0 ? std::ldexp(mantissa, -24)
                                               : std::ldexp(1024 + mantissa, exponent - 25);
            REQUIRE(static_cast<double>(wide[i]) == ((half & 0x8000) != 0 ? -value : value));
          }
        }
      }
    }
  }
}

TEST_CASE("fp16 rounds to nearest even") {
  struct Row {
    float from;
    std::uint16_t to;
  };
  const Row rows[] = {
      {1.0F + 0x1p-11F, 0x3c00},      // tie, down to even
      {1.0F + 3 * 0x1p-11F, 0x3c02},  // tie, up to even
      {65519.0F, 0x7bff},             // just below the overflow
      {65520.0F, 0x7c00},             // tie at the top: infinity
      {-1e9F, 0xfc00},
      {0x1p-25F, 0x0000},  // tie with zero
      {0x1.8p-25F, 0x0001},
      {std::numeric_limits<float>::infinity(), 0x7c00},
  };
  for (const Kernels* table : available_kernels()) {
    for (const Row& row : rows) {
      const std::vector<float> from(13, row.from);
      std::vector<std::uint16_t> to(from.size());
      table->f32_to_f16(from.data(), to.data(), from.size());
      CAPTURE(row.from);
      CHECK(std::all_of(to.begin(), to.end(), [&](auto value) { return value == row.to; }));
    }
  }
}

namespace {

// For every value of a 16-bit format: the value itself, the midpoint to the next one, and the
// floats on both sides of the midpoint.
void check_rounding(const Kernels& table, DType dtype) {
  const bool bf16 = dtype == DType::bfloat16;
  const auto infinity = static_cast<std::uint16_t>(bf16 ? 0x7f80 : 0x7c00);
  std::vector<std::uint16_t> all(infinity);  // all finite values that are not negative
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  std::vector<float> exact(all.size());
  acc::kernels::cast(all.data(), dtype, exact.data(), DType::float32, all.size());
  std::vector<float> from;
  std::vector<std::uint16_t> expected;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const double here = exact[i];
    const double step = i + 1 < all.size() ? static_cast<double>(exact[i + 1]) - here
                                           : here - static_cast<double>(exact[i - 1]);
    const auto middle = static_cast<float>(here + step / 2);
    const auto next = static_cast<std::uint16_t>(i + 1);  // infinity follows the last one
    const bool even = i % 2 == 0;
    // bfloat16's smallest values are float32 subnormals, which also have floats in between.
    for (const float sign : {1.0F, -1.0F}) {
      const auto bit = static_cast<std::uint16_t>(sign < 0 ? 0x8000 : 0);
      for (const auto& [value, rounded] :
           {std::pair{exact[i], all[i]}, std::pair{std::nextafter(middle, 0.0F), all[i]},
            std::pair{middle, even ? all[i] : next},
            std::pair{std::nextafter(middle, std::numeric_limits<float>::infinity()), next}}) {
        from.push_back(sign * value);
        expected.push_back(static_cast<std::uint16_t>(rounded | bit));
      }
    }
  }
  std::vector<std::uint16_t> to(from.size());
  (bf16 ? table.f32_to_bf16 : table.f32_to_f16)(from.data(), to.data(), from.size());
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    wrong += to[i] == expected[i] ? 0 : 1;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("every boundary between two 16-bit values rounds to nearest even") {
  for (const Kernels* table : available_kernels()) {
    CAPTURE(std::string(table->name));
    check_rounding(*table, DType::bfloat16);
    check_rounding(*table, DType::float16);
  }
}

TEST_CASE("all 65536 bfloat16 values survive conversion to fp32 and back") {
  std::vector<std::uint16_t> all(65536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  for (const Kernels* table : available_kernels()) {
    for (const std::size_t length : {std::size_t{65535}, std::size_t{5}}) {
      for (std::size_t begin = 1; begin + length <= all.size(); begin += length) {
        std::vector<float> wide(length);
        std::vector<std::uint16_t> back(length);
        table->bf16_to_f32(all.data() + begin, wide.data(), length);
        table->f32_to_bf16(wide.data(), back.data(), length);
        for (std::size_t i = 0; i < length; ++i) {
          const auto half = all[begin + i];
          REQUIRE(std::bit_cast<std::uint32_t>(wide[i]) == static_cast<std::uint32_t>(half) << 16);
          REQUIRE(back[i] == (std::isnan(wide[i]) ? half | 0x40 : half));
        }
      }
    }
  }
}

TEST_CASE("casts convert between any two dtypes of weights, and refuse others") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values = {1.0F, -0.5F, 300.0F, 1e30F, -kInfinity, std::nanf("")};
  std::vector<std::uint16_t> bf16(values.size());
  std::vector<std::uint16_t> f16(values.size());
  std::vector<float> back(values.size());
  acc::kernels::cast(values.data(), DType::float32, bf16.data(), DType::bfloat16, values.size());
  acc::kernels::cast(bf16.data(), DType::bfloat16, f16.data(), DType::float16, values.size());
  acc::kernels::cast(f16.data(), DType::float16, back.data(), DType::float32, values.size());
  CHECK(back[0] == 1.0F);
  CHECK(back[1] == -0.5F);
  CHECK(back[2] == 300.0F);
  CHECK(back[3] == kInfinity);
  CHECK(back[4] == -kInfinity);
  CHECK(std::isnan(back[5]));
  CHECK_THROWS_AS(acc::kernels::cast(values.data(), DType::float32, back.data(), DType::float64, 1),
                  acc::Error);
}

TEST_CASE("infinities and NaN survive reductions and norms") {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Kernels* table : available_kernels()) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      // 100 elements, so that vector loops and the tail see one of each.
      std::vector<float> values(100, 1.0F);
      values[3] = kInfinity;
      values[98] = std::nanf("");
      std::vector<std::uint16_t> halves(values.size());
      const void* source = values.data();
      if (dtype != DType::float32) {
        acc::kernels::cast(values.data(), DType::float32, halves.data(), dtype, values.size());
        source = halves.data();
      }
      std::vector<float> sums(values.size());
      float* const destination = sums.data();
      const void* sources[] = {source, source};
      table->reduce({.sources = sources,
                     .destinations = {&destination, 1},
                     .numel = sums.size(),
                     .dtype = dtype,
                     .scale = 0.25F});
      CHECK(sums[0] == 0.5F);
      CHECK(sums[3] == kInfinity);
      CHECK(std::isnan(sums[98]));
      CHECK(std::isinf(table->squared_norm(sums.data(), 50)));
      CHECK(std::isnan(table->squared_norm(sums.data(), sums.size())));
    }
  }
}

namespace {

constexpr std::size_t kUpdated = 1301;  // several blocks and a remainder
constexpr std::size_t kBefore = 3;      // elements in front, in no range

struct Formats {
  const char* name;
  DType weight = DType::float32;
  DType moment = DType::float32;
  std::optional<DType> rounded = {};
  bool stochastic = false;
};

const Formats kFormats[] = {
    {"fp32"},
    {"fp32 and bf16", DType::float32, DType::float32, DType::bfloat16},
    {"fp32 and fp16", DType::float32, DType::float32, DType::float16},
    {"bf16", DType::bfloat16, DType::bfloat16},
    {"bf16 by chance", DType::bfloat16, DType::bfloat16, {}, true},
    {"fp16", DType::float16, DType::bfloat16},
    {"fp16 by chance", DType::float16, DType::bfloat16, {}, true},
};

/// A shard with any combination of dtypes.
struct UpdateState {
  explicit UpdateState(const Formats& of) : formats(of) {
    const auto fill = [](std::vector<std::byte>& bytes, DType dtype, std::vector<float> values) {
      bytes.resize(values.size() * acc::nbytes_of(dtype));
      acc::kernels::cast(values.data(), DType::float32, bytes.data(), dtype, values.size());
    };
    const std::size_t numel = kUpdated + kBefore;
    auto squares = random_values(numel, 3);
    auto larger = random_values(numel, 2);  // a mean of squares that is above the square of a mean
    for (std::size_t i = 0; i < numel; ++i) {
      squares[i] *= squares[i];
      larger[i] = 10.0F + larger[i] * larger[i];
    }
    fill(weights, of.weight, random_values(numel, 1));
    fill(first, of.moment, larger);
    fill(second, of.moment, squares);
    fill(third, of.moment, random_values(numel, 5));
    rounded.resize(numel);
  }

  [[nodiscard]] UpdateArrays arrays() {
    return {.weights = weights.data(),
            .grads = grads.data(),
            .first = first.data(),
            .second = second.data(),
            .third = third.data(),
            .rounded = formats.rounded ? rounded.data() : nullptr,
            .rounded_dtype = formats.rounded.value_or(DType::bfloat16),
            .weight_dtype = formats.weight,
            .moment_dtype = formats.moment,
            .stochastic = formats.stochastic,
            .noise_key = 0x1234567890abcdefULL,
            .noise_first = 4'294'967'000U};  // wraps around
  }
  bool operator==(const UpdateState& other) const {
    return weights == other.weights && first == other.first && second == other.second &&
           third == other.third && rounded == other.rounded;
  }

  Formats formats;
  std::vector<float> grads = random_values(kUpdated + kBefore, 4);
  std::vector<std::byte> weights, first, second, third;
  std::vector<std::uint16_t> rounded;
};

}  // namespace

TEST_CASE("products of matrices are one chain of sums per element, in every variant") {
  struct Case {
    std::size_t rows, columns, inner;
    bool symmetric, transposed, adds;
  };
  for (const Case& each :
       {Case{1, 1, 1, false, false, false}, Case{13, 33, 7, false, false, true},
        Case{24, 64, 100, false, true, true}, Case{50, 50, 40, true, true, false},
        Case{37, 37, 37, true, true, true}, Case{5, 100, 3, false, false, false}}) {
    const auto [m, n, k, symmetric, transposed, adds] = each;
    CAPTURE(each.rows);
    CAPTURE(each.columns);
    CAPTURE(each.inner);
    const auto a = random_values(m * k, 1);
    const auto b = symmetric ? a : random_values(k * n, 2);
    const auto added = random_values(m * n, 3);
    std::vector<float> expected(m * n);
    for (std::size_t i = 0; i < m; ++i) {
      for (std::size_t j = 0; j < n; ++j) {
        float sum = 0.0F;
        for (std::size_t l = 0; l < k; ++l) {
          sum = std::fma(a[i * k + l], transposed ? b[j * k + l] : b[l * n + j], sum);
        }
        expected[i * n + j] = 0.7F * sum;
        if (adds) {
          expected[i * n + j] += 0.3F * added[i * n + j];
        }
      }
    }
    for (const Kernels* table : available_kernels()) {
      CAPTURE(std::string(table->name));
      std::vector<float> scratch(acc::kernels::Product::scratch_numel(m, k));
      std::vector<float> c(m * n, 77.0F);
      const acc::kernels::Product product{.a = a.data(),
                                          .a_row = k,
                                          .b = b.data(),
                                          .b_row = transposed ? 1 : n,
                                          .b_column = transposed ? k : 1,
                                          .added = adds ? added.data() : nullptr,
                                          .c = c.data(),
                                          .rows = m,
                                          .columns = n,
                                          .inner = k,
                                          .alpha = 0.7F,
                                          .beta = 0.3F,
                                          .symmetric = symmetric,
                                          .scratch = scratch.data()};
      const std::size_t half = std::min<std::size_t>(n, 32);
      table->multiply(product, 0, half);
      if (n > half) {
        table->multiply(product, half, n - half);
      }
      for (std::size_t i = 0; i < m; ++i) {
        for (std::size_t j = 0; j < (symmetric ? i + 1 : n); ++j) {
          CHECK(c[i * n + j] == expected[i * n + j]);
        }
      }
    }
  }
}

TEST_CASE("a matrix is orthogonalized alike by any number of threads, from its transpose too") {
  const std::size_t rows = 70;
  const std::size_t columns = 45;
  const auto matrix = random_values(rows * columns, 4);
  const acc::kernels::RunParts run = [](std::size_t parts, const auto& task) {
    for (std::size_t i = 0; i < parts; ++i) {
      task(i);
    }
  };
  auto one = matrix;
  acc::kernels::orthogonalize(one.data(), rows, columns, 5, 1e-7F, 1, run);
  auto three = matrix;
  acc::kernels::orthogonalize(three.data(), rows, columns, 5, 1e-7F, 3, run);
  CHECK(one == three);
  std::vector<float> turned(matrix.size());
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    turned[i % columns * rows + i / columns] = matrix[i];
  }
  acc::kernels::orthogonalize(turned.data(), columns, rows, 5, 1e-7F, 1, run);
  double squares = 0.0;
  for (std::size_t i = 0; i < matrix.size(); ++i) {
    CHECK(std::abs(turned[i % columns * rows + i / columns] - one[i]) < 1e-5F);
    squares += static_cast<double>(one[i]) * one[i];
  }
  CHECK(squares > 0.5 * columns);  // the sum of the squared singular values
  CHECK(squares < 1.5 * columns);
  std::vector<float> zeros(12);
  acc::kernels::orthogonalize(zeros.data(), 3, 4, 5, 1e-7F, 1, run);
  CHECK(zeros == std::vector<float>(12));
  std::vector<float> broken = {1.0F, std::nanf(""), 2.0F, 3.0F};
  acc::kernels::orthogonalize(broken.data(), 2, 2, 5, 1e-7F, 1, run);
  CHECK(std::isnan(broken[0]));
}

TEST_CASE("the orthogonalization of square and of wide matrices is that of the formula in double") {
  using Matrix = std::vector<double>;
  // a [m][k] times b [k][n], or times b^T with b [n][k].
  const auto product = [](const Matrix& a, const Matrix& b, std::size_t m, std::size_t n,
                          bool transposed) {
    const std::size_t k = a.size() / m;
    Matrix c(m * n);
    for (std::size_t i = 0; i < m * n * k; ++i) {
      const std::size_t row = i / k / n;
      const std::size_t column = i / k % n;
      c[i / k] += a[row * k + i % k] * (transposed ? b[column * k + i % k] : b[i % k * n + column]);
    }
    return c;
  };
  const acc::kernels::RunParts run = [](std::size_t parts, const auto& task) {
    for (std::size_t i = 0; i < parts; ++i) {
      task(i);
    }
  };
  struct Case {
    std::size_t m, n, rank;
    int steps;
  };
  for (const Case& each : {Case{24, 24, 24, 5}, Case{20, 90, 20, 5}, Case{20, 90, 4, 5},
                           Case{20, 90, 20, 1}, Case{20, 90, 20, 12}, Case{1, 50, 1, 5}}) {
    CAPTURE(each.m);
    CAPTURE(each.rank);
    CAPTURE(each.steps);
    const auto left = random_values(each.m * each.rank, 8);
    const auto right = random_values(each.rank * each.n, 9);
    const Matrix exact =
        product({left.begin(), left.end()}, {right.begin(), right.end()}, each.m, each.n, false);
    std::vector<float> found(exact.begin(), exact.end());
    Matrix x(found.begin(), found.end());
    const double norm = std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
    for (double& value : x) {
      value /= norm;
    }
    for (int step = 0; step < each.steps; ++step) {
      const Matrix gram = product(x, x, each.m, each.m, true);
      Matrix polynomial = product(gram, gram, each.m, each.m, false);
      for (std::size_t i = 0; i < gram.size(); ++i) {
        polynomial[i] = 2.0315 * polynomial[i] - 4.7750 * gram[i];
      }
      const Matrix added = product(polynomial, x, each.m, each.n, false);
      for (std::size_t i = 0; i < x.size(); ++i) {
        x[i] = 3.4445 * x[i] + added[i];
      }
    }
    acc::kernels::orthogonalize(found.data(), each.m, each.n, each.steps, 1e-7F, 1, run);
    double worst = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      worst = std::max(worst, std::abs(x[i] - static_cast<double>(found[i])));
    }
    CHECK(worst < 5e-5);
  }
}

namespace {

/// create_dynamic_map of bitsandbytes 0.50.2, in double.
std::vector<double> dynamic_map(bool is_signed) {
  std::vector<double> data = {0.0, 1.0};
  for (int i = 0; i < 7; ++i) {
    const int count = 1 << (is_signed ? i : i + 1);
    for (int k = 0; k < count; ++k) {
      const double mean = 0.1 + (1.0 - 0.1) * (k + 0.5) / count;
      data.push_back(std::pow(10.0, i - 6) * mean);
      if (is_signed) {
        data.push_back(-data.back());
      }
    }
  }
  std::ranges::sort(data);
  return data;
}

std::vector<float> unpacked(const std::vector<std::uint8_t>& codes, bool is_signed, float scale) {
  std::vector<float> values(codes.size());
  acc::kernels::kernels().unpack(codes.data(), is_signed, scale, values.data(), codes.size());
  return values;
}

}  // namespace

TEST_CASE(
    "states in 8 bits: bitsandbytes's numbers, the closest for each value, in every variant") {
  for (const bool is_signed : {true, false}) {
    CAPTURE(is_signed);
    const std::vector<double> map = dynamic_map(is_signed);
    REQUIRE(map.size() == 256);
    std::vector<std::uint8_t> all(256);
    std::iota(all.begin(), all.end(), std::uint8_t{0});
    const auto numbers = unpacked(all, is_signed, 1.0F);
    for (std::size_t i = 0; i < 256; ++i) {
      CHECK(std::abs(numbers[i] - map[i]) <= 2e-7 * std::abs(map[i]));
    }
    // Magnitudes from 1e-9 to 1 of the scale, and 0.
    std::vector<float> values = random_values(5000, 7);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] *= std::pow(10.0F, -static_cast<float>(i % 10));
      values[i] = i % 50 == 0 ? 0.0F : is_signed ? values[i] : std::abs(values[i]);
    }
    // Between two numbers of the scale 1, where the closest one changes.
    values.push_back(1.0F);
    for (std::size_t i = 0; i + 1 < map.size(); ++i) {
      float value = static_cast<float>((map[i] + map[i + 1]) / 2.0);
      for (int step = 0; step < 4; ++step) {
        values.push_back(value);
        value = std::nextafter(value, step < 2 ? -2.0F : 2.0F);
      }
    }
    Extremes extremes;
    acc::kernels::kernels().extremes(values.data(), values.size(), &extremes.highest,
                                     &extremes.lowest);
    CHECK(extremes.highest == *std::ranges::max_element(values));
    CHECK(extremes.lowest == std::max(0.0F, -*std::ranges::min_element(values)));
    const float scale = acc::kernels::scale_of(extremes);
    std::vector<std::uint8_t> first;
    for (const Kernels* table : available_kernels()) {
      CAPTURE(table->name);
      std::vector<std::uint8_t> codes(values.size());
      table->pack(values.data(), is_signed, scale, codes.data(), 1000);
      table->pack(values.data() + 1000, is_signed, scale, codes.data() + 1000,
                  values.size() - 1000);
      first = first.empty() ? codes : first;
      CHECK(codes == first);
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double x = static_cast<double>(values[i]) / scale;
      double least = 2.0;
      for (const double number : map) {
        least = std::min(least, std::abs(x - number));
      }
      CHECK(std::abs(x - map[first[i]]) <= least + 1e-6 * std::abs(x));
    }
  }
}

TEST_CASE("states in 8 bits that are unpacked, and packed again, are the same, bit for bit") {
  for (const float size : {1.0F, -1.0F, -0.37F, -3e-41F, 2e-40F, -1e30F, 0.0F}) {
    CAPTURE(size);
    for (std::size_t numel : {1, 5, 256}) {
      // The largest magnitude is that of a positive or of a negative number.
      auto values = random_values(numel, 3);
      for (float& value : values) {
        value = size * std::clamp(value, -0.9F, 0.9F);
      }
      values[0] = size;
      values[numel / 2] = numel > 1 ? -0.992F * size : size;
      const auto packed = [](const std::vector<float>& from, float scale) {
        std::vector<std::uint8_t> codes(from.size());
        acc::kernels::kernels().pack(from.data(), true, scale, codes.data(), from.size());
        return codes;
      };
      const auto extremes_of = [](const std::vector<float>& from) {
        Extremes found;
        acc::kernels::kernels().extremes(from.data(), from.size(), &found.highest, &found.lowest);
        return found;
      };
      const float scale = acc::kernels::scale_of(extremes_of(values));
      CHECK(std::abs(scale - std::abs(size)) <= 2.4e-7F * std::abs(size) + 2e-45F);
      const auto codes = packed(values, scale);
      const auto back = unpacked(codes, true, scale);
      const float again = acc::kernels::scale_of_packed(extremes_of(back));
      CHECK(again == scale);
      CHECK(unpacked(packed(back, again), true, again) == back);
    }
  }
  const std::vector<float> broken = {1.0F, std::nanf(""), -5.0F};
  Extremes extremes;
  acc::kernels::kernels().extremes(broken.data(), 3, &extremes.highest, &extremes.lowest);
  CHECK(std::isnan(acc::kernels::scale_of(extremes)));
}

TEST_CASE("states in 8 bits: whole blocks are updated as their parts are, in every variant") {
  // Blocks with usual states, with zeros, and with scales that have no reciprocal; new states that
  // are all zero, small, or NaN.
  constexpr std::size_t kBlocks = 6;
  constexpr auto kBlock = static_cast<std::size_t>(kPackedBlock);
  const float sizes[kBlocks] = {1.0F, 1e-4F, 0.0F, 1e-22F, 1e-38F, 1.0F};
  struct Arrays {
    std::vector<std::uint16_t> halves;
    std::vector<float> weights;
    std::array<std::vector<std::uint8_t>, kMostStates> codes = {};
    std::array<std::vector<float>, kMostStates> scales = {};
  };
  std::vector<float> grads = random_values(kBlocks * kBlock, 5);
  for (std::size_t i = 0; i < grads.size(); ++i) {
    grads[i] *= sizes[i / kBlock];
  }
  grads.back() = std::nanf("");
  int rules = 0;
  for (const UpdateStep& step : acc::test::steps_of_all_rules(3)) {
    const auto states = static_cast<std::size_t>(acc::test::states_of(step));
    if (acc::find_optimizer_rule(acc::test::rule_of(step))->coefficient(acc::kStates8Bit) ==
        nullptr) {
      CHECK((kernels().packed_updates[step.index()] == nullptr));
      continue;
    }
    CAPTURE(acc::test::rule_of(step));
    ++rules;
    Arrays first{.halves = std::vector<std::uint16_t>(grads.size()),
                 .weights = random_values(grads.size(), 6)};
    for (std::size_t i = 0; i < states; ++i) {
      for (std::size_t at = 0; at < grads.size(); ++at) {
        first.codes[i].push_back(static_cast<std::uint8_t>(at * 37 + i));
      }
      first.scales[i].assign(std::begin(sizes), std::end(sizes));
    }
    const auto update_of = [&](Arrays& arrays) {
      return UpdateArrays{.weights = arrays.weights.data(),
                          .grads = grads.data(),
                          .first = nullptr,
                          .second = nullptr,
                          .rounded = arrays.halves.data()};
    };
    Arrays expected = first;
    for (std::size_t begin = 0; begin < grads.size(); begin += kBlock) {
      std::vector<float> values[kMostStates];
      UpdateArrays update = arrays_from(update_of(expected), begin);
      void** const places[] = {&update.first, &update.second, &update.third};
      for (std::size_t i = 0; i < states; ++i) {
        values[i].resize(kBlock);
        kernels().unpack(&expected.codes[i][begin], i == 0, expected.scales[i][begin / kBlock],
                         values[i].data(), kBlock);
        *places[i] = values[i].data();
      }
      kernels().update(step, update, 0, kBlock);
      for (std::size_t i = 0; i < states; ++i) {
        Extremes found;
        kernels().extremes(values[i].data(), kBlock, &found.highest, &found.lowest);
        expected.scales[i][begin / kBlock] = scale_of(found);
        kernels().pack(values[i].data(), i == 0, scale_of(found), &expected.codes[i][begin],
                       kBlock);
      }
    }
    for (const Kernels* table : available_kernels()) {
      CAPTURE(table->name);
      Arrays got = first;
      PackedRange range{.numel = grads.size()};
      for (std::size_t i = 0; i < states; ++i) {
        range.codes[i] = got.codes[i].data();
        range.scales[i] = got.scales[i].data();
      }
      table->update_packed(step, update_of(got), range, grads.size());
      CHECK(got.codes == expected.codes);
      CHECK(got.halves == expected.halves);
      CHECK(same_bits(got.weights, expected.weights));
      for (std::size_t i = 0; i < states; ++i) {
        CHECK(same_bits(got.scales[i], expected.scales[i]));
      }
    }
  }
  CHECK(rules == 5);
}

TEST_CASE("updates are bitwise equal in every variant, at any offset, in every dtype") {
  const auto run = [&](const Formats& formats, const acc::kernels::UpdateStep& step,
                       const Kernels& table, std::size_t piece) {
    UpdateState state(formats);
    for (std::size_t i = kBefore; i < kUpdated + kBefore; i += piece) {
      table.update(step, state.arrays(), i, std::min(piece, kUpdated + kBefore - i));
    }
    return state;
  };
  for (const Formats& formats : kFormats) {
    for (const auto& step : acc::test::steps_of_all_rules(3)) {
      const UpdateState reference = run(formats, step, *available_kernels().back(), 1);
      CHECK_FALSE(reference == UpdateState(formats));
      for (const Kernels* table : available_kernels()) {
        for (const std::size_t piece : {std::size_t{1}, std::size_t{23}, kUpdated}) {
          CAPTURE(formats.name);
          CAPTURE(acc::test::rule_of(step));
          CAPTURE(std::string(table->name));
          CAPTURE(piece);
          CHECK((run(formats, step, *table, piece) == reference));
        }
      }
    }
  }
}

TEST_CASE("an update in 16 bits is the update in fp32, rounded") {
  const AdamWStep adamw{0.37F, 0.999F, 0.1F, 0.95F, 0.05F, 0.22F, 1e-8F, 1e-2F};
  for (const Formats& formats : kFormats) {
    if (formats.weight == DType::float32 || formats.stochastic) {
      continue;
    }
    CAPTURE(formats.name);
    UpdateState low(formats);
    UpdateState high(kFormats[0]);
    const auto widen = [](const std::vector<std::byte>& from, DType dtype,
                          std::vector<std::byte>& to) {
      acc::kernels::cast(from.data(), dtype, to.data(), DType::float32, kUpdated + kBefore);
    };
    widen(low.weights, formats.weight, high.weights);
    widen(low.first, formats.moment, high.first);
    widen(low.second, formats.moment, high.second);
    kernels().update(adamw, low.arrays(), 0, kUpdated + kBefore);
    kernels().update(adamw, high.arrays(), 0, kUpdated + kBefore);
    const auto is_rounded = [](const std::vector<std::byte>& from, DType dtype,
                               const std::vector<std::byte>& expected) {
      std::vector<std::byte> rounded(expected.size());
      acc::kernels::cast(from.data(), DType::float32, rounded.data(), dtype, kUpdated + kBefore);
      return rounded == expected;
    };
    CHECK(is_rounded(high.weights, formats.weight, low.weights));
    CHECK(is_rounded(high.first, formats.moment, low.first));
    CHECK(is_rounded(high.second, formats.moment, low.second));
  }
}

TEST_CASE("stochastic rounding has the right mean and keeps exact values") {
  const std::size_t numel = 200'000;
  struct Row {
    DType dtype;
    float weight;
    float step;  ///< much smaller than half a unit in the last place of the weight, or 0
  };
  const Row rows[] = {
      {DType::bfloat16, 1.0F, 1e-4F},       {DType::bfloat16, -3.0F, 2e-3F},
      {DType::float16, 1.0F, 1e-4F},        {DType::float16, -1000.0F, 0.05F},
      {DType::float16, 0x1p-20F, 0x1p-27F},  // subnormal
      {DType::bfloat16, 1.0F, 0.0F},        {DType::float16, -5.0F, 0.0F},
  };
  for (const Row& row : rows) {
    CAPTURE(std::string(acc::to_string(row.dtype)));
    CAPTURE(row.weight);
    std::vector<float> wide(numel, row.weight);
    std::vector<std::uint16_t> weights(numel);
    acc::kernels::cast(wide.data(), DType::float32, weights.data(), row.dtype, numel);
    const std::vector<float> grads(numel, -1.0F);
    UpdateArrays arrays{.weights = weights.data(),
                        .grads = grads.data(),
                        .first = nullptr,
                        .second = nullptr,
                        .rounded = nullptr,
                        .weight_dtype = row.dtype,
                        .moment_dtype = DType::bfloat16,
                        .stochastic = true,
                        .noise_key = 77};
    kernels().update(SgdStep{.grad_scale = 1.0F, .decay = 0.0F, .lr = row.step}, arrays, 0, numel);
    acc::kernels::cast(weights.data(), row.dtype, wide.data(), DType::float32, numel);
    double sum = 0.0;
    double squares = 0.0;
    for (const float value : wide) {
      const double moved = static_cast<double>(value) - static_cast<double>(row.weight);
      sum += moved;
      squares += moved * moved;
    }
    const double mean = sum / static_cast<double>(numel);
    const double deviation = std::sqrt(squares) / static_cast<double>(numel);
    CHECK(std::abs(mean - static_cast<double>(row.step)) <= 5.0 * deviation);
  }
}
