#include "kernels/kernels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
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

// Sources of a reduction, one element off any vector boundary, with guards behind the result.
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

TEST_CASE("reductions sum in order, bit for bit, in every variant") {
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
    // In fp32 the sum would stick at 2^24.
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

TEST_CASE("values are clamped after they are scaled, and NaN stays") {
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

TEST_CASE("all 65536 halves survive the way to fp32 and back") {
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

TEST_CASE("the updates give the same bits in every variant, at any offset") {
  const std::size_t numel = 301;
  const AdamWCoefficients adamw{0.37F, 0.999F, 0.1F, 0.95F, 0.05F, 0.22F, 1e-8F, 1e-2F};
  const SgdCoefficients sgd{0.37F, 0.1F, 0.9F, 0.01F, true, false};
  struct State {
    std::vector<float> weights = random_values(numel + 3, 1), m = random_values(numel + 3, 2),
                       v = random_values(numel + 3, 3);
    std::vector<std::uint16_t> bf16 = std::vector<std::uint16_t>(numel + 3);
    State() {
      for (float& value : v) {
        value *= value;
      }
    }
  };
  const auto grads = random_values(numel + 3, 4);
  const auto run = [&](const Kernels& table, std::size_t piece) {
    State state;
    for (std::size_t i = 3; i < numel + 3; i += piece) {
      const std::size_t count = std::min(piece, numel + 3 - i);
      table.adamw(adamw, &state.weights[i], &grads[i], &state.m[i], &state.v[i], &state.bf16[i],
                  count);
      table.sgd(sgd, &state.weights[i], &grads[i], &state.m[i], nullptr, count);
    }
    return state;
  };
  const State reference = run(*available_kernels().back(), 1);
  for (const Kernels* table : available_kernels()) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{23}, numel}) {
      const State state = run(*table, piece);
      CAPTURE(std::string(table->name));
      CAPTURE(piece);
      CHECK(same_bits(state.weights, reference.weights));
      CHECK(same_bits(state.m, reference.m));
      CHECK(same_bits(state.v, reference.v));
      CHECK(state.bf16 == reference.bf16);
    }
  }
}
