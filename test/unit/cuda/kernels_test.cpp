// SPDX-License-Identifier: Apache-2.0
// Compares every loop of a GPU with the CPU's: the results are bitwise equal.
#include "device/cpu_device.hpp"
#include "gpu.hpp"
#include "support/update_steps.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

using namespace acc;
using namespace acc::device;
using acc::test::OnDevice;
using acc::test::random_values;
using acc::test::same_bits;

namespace {

// Sizes around those of a quad, of a block's row of quads and of a tile, and several tiles.
const std::size_t kSizes[] = {0, 1, 3, 4, 5, 255, 1023, 1024, 1025, 4095, 4096, 4097, 20'011};
const DType kHalves[] = {DType::bfloat16, DType::float16};

Device& gpu() {
  static const DevicePtr device = test::open_gpu().device;
  return *device;
}
Device& cpu() {
  static const DevicePtr device = open_cpu_device();
  return *device;
}

// Random values of all magnitudes, including all special values and values halfway between two
// 16-bit values.
std::vector<float> wide_values(std::size_t numel, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<float> values(numel);
  const float special[] = {0.0F,
                           -0.0F,
                           std::numeric_limits<float>::infinity(),
                           -std::numeric_limits<float>::infinity(),
                           std::numeric_limits<float>::denorm_min(),
                           std::numeric_limits<float>::max(),
                           65519.0F,
                           65520.0F,
                           6e-8F,
                           2.9e-8F,
                           1.00390625F,
                           1.01171875F};
  for (std::size_t i = 0; i < numel; ++i) {
    auto bits = static_cast<std::uint32_t>(generator());
    if (i % 3 == 1) {
      bits = (bits & 0x8fffffffU) | 0x30000000U;  // within the range of float16
    }
    const float value = std::bit_cast<float>(bits);
    values[i] = i % 5 == 2 ? special[i / 5 % std::size(special)] : std::isnan(value) ? 1.5F : value;
  }
  return values;
}

template <typename T>
std::vector<T> cast_on(Device& device, const std::vector<auto>& from, DType from_dtype,
                       DType to_dtype, std::size_t offset) {
  const OnDevice source(device, from, offset);
  const OnDevice<T> target(device, std::vector<T>(from.size() + 1, T{7}), offset);
  device.cast(source.data(), from_dtype, target.data(), to_dtype, from.size(), device.compute());
  return target.values();
}

std::vector<float> add_scaled_on(Device& device, const std::vector<auto>& from, DType dtype,
                                 const std::vector<float>& to, float scale, bool accumulate,
                                 std::size_t offset) {
  const OnDevice source(device, from, offset);
  const OnDevice<float> target(device, to, offset);
  device.add_scaled(source.data(), dtype, target.data(), from.size(), scale, accumulate,
                    device.compute());
  return target.values();
}

double norm_on_gpu(const std::vector<float>& values, std::size_t offset, double before = 0.0) {
  const OnDevice<float> source(gpu(), values, offset);
  const OnDevice<double> sum(gpu(), {before});
  gpu().add_squared_norm(source.data(), values.size(), sum.data(), gpu().compute());
  return sum.values()[0];
}

double tree_sum(std::vector<double> sums) {
  for (std::size_t half = sums.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) {
      sums[i] += sums[i + half];
    }
  }
  return sums[0];
}

// The order in which a GPU adds: 256 threads per block, each with four elements of a tile of 4096
// at a time.
double norm_in_order(const std::vector<float>& values) {
  constexpr std::size_t kThreads = 256;
  constexpr std::size_t kTile = 4096;
  const std::size_t blocks = std::min<std::size_t>((values.size() + kTile - 1) / kTile, 2048);
  std::vector<std::vector<double>> sums(blocks, std::vector<double>(kThreads));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<double>(values[i]);
    sums[i / kTile % blocks][i % kTile / 4 % kThreads] += value * value;
  }
  std::vector<double> of_blocks(kThreads);
  for (std::size_t block = 0; block < blocks; ++block) {
    of_blocks[block % kThreads] += tree_sum(sums[block]);
  }
  return tree_sum(of_blocks);
}

// A shard with its optimizer state.
struct Shard {
  std::vector<float> weights, grads, first, second, third;
  std::vector<std::uint16_t> rounded;

  Shard(std::size_t numel, unsigned seed)
      : weights(random_values(numel, seed)),
        grads(random_values(numel, seed + 100)),
        first(random_values(numel, seed + 200)),
        second(random_values(numel, seed + 300)),
        third(random_values(numel, seed + 400)),
        rounded(numel, 7) {
    for (std::size_t i = 0; i < numel; ++i) {
      second[i] *= second[i];
      third[i] *= 0.5F;
      // A mean of squares that is above the square of each mean.
      first[i] = 10.0F + first[i] * first[i] + second[i] * second[i] + third[i] * third[i];
    }
  }
  bool operator==(const Shard& other) const {
    return same_bits(weights, other.weights) && same_bits(grads, other.grads) &&
           same_bits(first, other.first) && same_bits(second, other.second) &&
           same_bits(third, other.third) && rounded == other.rounded;
  }
};

struct UpdateCase {
  int states = 2;
  bool rounds = true;
  std::size_t offset = 0;
  DType rounded_dtype = DType::bfloat16;
};

// The shard after `update(device, arrays)`.
Shard updated_on(Device& device, Shard shard, const UpdateCase& options, auto&& update) {
  const OnDevice weights(device, shard.weights, options.offset);
  const OnDevice grads(device, shard.grads, options.offset);
  const OnDevice first(device, shard.first, options.offset);
  const OnDevice second(device, shard.second, options.offset);
  const OnDevice third(device, shard.third, options.offset);
  const OnDevice rounded(device, shard.rounded, options.offset);
  update(device, UpdateArrays{.weights = weights.data(),
                              .grads = grads.data(),
                              .first = options.states > 0 ? first.data() : nullptr,
                              .second = options.states > 1 ? second.data() : nullptr,
                              .third = options.states > 2 ? third.data() : nullptr,
                              .rounded = options.rounds ? rounded.data() : nullptr,
                              .rounded_dtype = options.rounded_dtype});
  shard.weights = weights.values();
  shard.grads = grads.values();
  shard.first = first.values();
  shard.second = second.values();
  shard.third = third.values();
  shard.rounded = rounded.values();
  return shard;
}

// Ranges of all sizes in ascending order, with gaps between them; more ranges than one launch
// takes.
std::vector<UpdateRange> odd_ranges(std::int64_t& numel) {
  std::vector<UpdateRange> ranges;
  std::int64_t begin = 16;
  for (int i = 0; i < 150; ++i) {
    const std::int64_t size = i % 50 == 3 ? 6'000 + i : i % 7 == 6 ? 0 : 1 + 37 * i % 300;
    ranges.push_back({.begin = begin, .numel = size, .decays = i % 3 != 0});
    begin = (begin + size + 15) / 16 * 16 + (i % 4 == 1 ? 32 : 0);
  }
  numel = begin;
  return ranges;
}

constexpr kernels::AdamWStep kAdamW{.grad_scale = 0.37F,
                                    .decay = 0.999F,
                                    .beta1_complement = 0.1F,
                                    .beta2 = 0.95F,
                                    .beta2_complement = 0.05F,
                                    .sqrt_bias_correction2 = 0.31F,
                                    .eps = 1e-8F,
                                    .step_size = 3e-3F};

}  // namespace

TEST_CASE("float32 is rounded to 16 bits as on the CPU") {
  for (const DType dtype : kHalves) {
    for (const std::size_t numel : kSizes) {
      for (const std::size_t offset : {0U, 1U, 4U}) {
        CAPTURE(to_string(dtype));
        CAPTURE(numel);
        CAPTURE(offset);
        const auto values = wide_values(numel, static_cast<unsigned>(numel + offset));
        const auto result = cast_on<std::uint16_t>(gpu(), values, DType::float32, dtype, offset);
        CHECK(result == cast_on<std::uint16_t>(cpu(), values, DType::float32, dtype, offset));
        CHECK(result.back() == 7);
      }
    }
  }
}

TEST_CASE("all 16-bit values widen as on the CPU, and NaN stays NaN") {
  std::vector<std::uint16_t> all(65'536);
  std::iota(all.begin(), all.end(), std::uint16_t{0});
  for (const DType dtype : kHalves) {
    const auto result = cast_on<float>(gpu(), all, dtype, DType::float32, 0);
    const auto expected = cast_on<float>(cpu(), all, dtype, DType::float32, 0);
    std::size_t different = 0;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool same = std::isnan(expected[i]) ? std::isnan(result[i])
                                                : std::bit_cast<std::uint32_t>(expected[i]) ==
                                                      std::bit_cast<std::uint32_t>(result[i]);
      different += same ? 0 : 1;
    }
    CHECK(different == 0);
    const std::vector nan(5, std::numeric_limits<float>::quiet_NaN());
    const auto rounded = cast_on<std::uint16_t>(gpu(), nan, DType::float32, dtype, 0);
    CHECK(std::isnan(cast_on<float>(gpu(), rounded, dtype, DType::float32, 0)[4]));
  }
}

TEST_CASE("add_scaled gives the CPU's bits") {
  for (const unsigned seed : {1U, 2U}) {
    for (const std::size_t numel : kSizes) {
      const std::size_t offset = numel % 3 == 0 ? 0 : numel % 3 == 1 ? 1 : 4;
      const bool accumulate = seed == 1;
      const float scale = seed == 1 ? 0.125F / 3.0F : 1.0F;
      CAPTURE(numel);
      CAPTURE(seed);
      const auto from = random_values(numel, seed);
      const auto to = random_values(numel + 3, seed + 1);
      CHECK(same_bits(add_scaled_on(gpu(), from, DType::float32, to, scale, accumulate, offset),
                      add_scaled_on(cpu(), from, DType::float32, to, scale, accumulate, offset)));
      for (const DType dtype : kHalves) {
        const auto half = cast_on<std::uint16_t>(cpu(), from, DType::float32, dtype, 0);
        const std::vector<std::uint16_t> source(half.begin(), half.end() - 1);
        CHECK(same_bits(add_scaled_on(gpu(), source, dtype, to, scale, accumulate, offset),
                        add_scaled_on(cpu(), source, dtype, to, scale, accumulate, offset)));
      }
    }
  }
}

TEST_CASE("scaling and clamping gives the CPU's bits") {
  const auto clamped_on = [](Device& device, const std::vector<float>& values, std::size_t offset) {
    const OnDevice<float> array(device, values, offset);
    device.scale_clamped(array.data(), values.size() - 1, 1.0F / 3.0F, 0.25F, device.compute());
    return array.values();
  };
  for (const std::size_t numel : kSizes) {
    for (const std::size_t offset : {0U, 1U, 4U}) {
      CAPTURE(numel);
      CAPTURE(offset);
      const auto values = random_values(numel + 1, static_cast<unsigned>(numel));
      CHECK(same_bits(clamped_on(gpu(), values, offset), clamped_on(cpu(), values, offset)));
    }
  }
}

TEST_CASE("a squared norm has one order of sums, wherever the values lie") {
  std::vector<std::size_t> sizes(std::begin(kSizes), std::end(kSizes));
  sizes.push_back(std::size_t{2048} * 4096 + 5'000);  // more tiles than blocks
  for (const std::size_t numel : sizes) {
    CAPTURE(numel);
    const auto values = random_values(numel, static_cast<unsigned>(numel) + 5);
    const double norm = norm_on_gpu(values, 0);
    CHECK(norm == norm_in_order(values));
    CHECK(norm_on_gpu(values, 1) == norm);
    CHECK(norm_on_gpu(values, 4, 2.5) == 2.5 + norm);
  }
}

TEST_CASE("two streams compute norms side by side") {
  const StreamPtr other = gpu().make_stream("norms");
  const auto values = random_values(20'011, 9);
  const auto more = random_values(20'011, 10);
  const OnDevice<float> first(gpu(), values);
  const OnDevice<float> second(gpu(), more);
  const OnDevice<double> sums(gpu(), {0.0, 0.0});
  for (int round = 0; round < 4; ++round) {
    gpu().add_squared_norm(first.data(), values.size(), sums.data(), gpu().compute());
    gpu().add_squared_norm(second.data(), more.size(), sums.data() + 1, *other);
  }
  CHECK(sums.values()[0] == 4 * norm_on_gpu(values, 0));
  CHECK(sums.values()[1] == 4 * norm_on_gpu(more, 0));
}

TEST_CASE("the scratch memory of a norm is not used by its last owner any more") {
  const auto values = random_values(50'000, 11);
  const OnDevice<float> source(gpu(), values);
  const OnDevice<double> sum(gpu(), {0.0});
  constexpr int kRounds = 8;
  for (int round = 0; round < kRounds; ++round) {
    const StreamPtr stream = gpu().make_stream("norms");
    MemoryPtr used = gpu().allocate(2048 * sizeof(double), "used");
    gpu().copy(used->data(), source.data(), used->nbytes(), gpu().compute());
    used = nullptr;
    gpu().add_squared_norm(source.data(), values.size(), sum.data(), *stream);
  }
  double expected = 0.0;
  for (int round = 0; round < kRounds; ++round) {
    expected += norm_in_order(values);
  }
  CHECK(sum.values()[0] == expected);
}

TEST_CASE("the factor of clipping is computed on the GPU with the CPU's bits") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double squares : {0.0, 1e-30, 2.0, 1e12, infinity, std::nan("")}) {
    for (const double ignored : {0.0, 5.0}) {
      for (const double max_norm : {0.0, 0.5, 1e9}) {
        CAPTURE(squares);
        CAPTURE(max_norm);
        const auto clipped_on = [&](Device& device) {
          const OnDevice<double> both(device, {squares, ignored});
          const OnDevice<kernels::ClipFigures> figures(device, {{}});
          device.clip_to_norm(both.data(), 3, max_norm, figures.data(), device.compute());
          const kernels::ClipFigures found = figures.values()[0];
          return std::vector<double>{found.norm, found.coefficient, found.factor};
        };
        const auto found = clipped_on(gpu());
        const auto expected = clipped_on(cpu());
        for (std::size_t i = 0; i < found.size(); ++i) {
          CHECK((found[i] == expected[i] || (std::isnan(found[i]) && std::isnan(expected[i]))));
        }
        if (std::isfinite(squares)) {
          CHECK(found[0] == std::sqrt(squares + ignored / 3));
          CHECK(found[1] == kernels::clip_coefficient(found[0], max_norm));
        }
      }
    }
  }
}

TEST_CASE("updates multiply gradients by the factor in memory of the device") {
  std::int64_t numel = 0;
  const auto ranges = odd_ranges(numel);
  const Shard before(static_cast<std::size_t>(numel), 5);
  const auto with_factor = [&](Device& device, float known, const std::vector<float>& clip) {
    const OnDevice<float> factor(device, clip.empty() ? std::vector<float>{1.0F} : clip);
    return updated_on(device, before, {}, [&](Device& own, const UpdateArrays& arrays) {
      UpdateArrays clipped = arrays;
      clipped.clip = clip.empty() ? nullptr : factor.data();
      kernels::AdamWStep coefficients = kAdamW;
      coefficients.grad_scale = known;
      own.update(coefficients, clipped, ranges, own.compute());
    });
  };
  for (Device* device : {&gpu(), &cpu()}) {
    const Shard expected = with_factor(*device, 0.25F, {});
    CHECK((with_factor(*device, 1.0F, {0.25F}) == expected));
    CHECK((with_factor(*device, 0.5F, {0.5F}) == expected));
    CHECK_FALSE((with_factor(*device, 1.0F, {}) == expected));
  }
}

TEST_CASE("AdamW gives the CPU's bits over any ranges and does not change the gaps") {
  std::int64_t numel = 0;
  const auto ranges = odd_ranges(numel);
  const auto step = [&](Device& device, const UpdateArrays& arrays) {
    device.update(kAdamW, arrays, ranges, device.compute());
  };
  for (const unsigned seed : {1U, 2U}) {
    for (const bool rounds : {true, false}) {
      const UpdateCase options{.rounds = rounds, .offset = seed == 1 ? 0U : 4U};
      const Shard before(static_cast<std::size_t>(numel), seed);
      const Shard after = updated_on(gpu(), before, options, step);
      CHECK((after == updated_on(cpu(), before, options, step)));
      CHECK_FALSE((after == before));
      CHECK(same_bits(after.grads, before.grads));
    }
  }
}

TEST_CASE("AdamW writes float16 weights if requested") {
  const std::vector<UpdateRange> ranges{{.begin = 0, .numel = 5'001}};
  const Shard before(5'004, 3);
  const Shard after = updated_on(gpu(), before, {.rounded_dtype = DType::float16},
                                 [&](Device& device, const UpdateArrays& arrays) {
                                   device.update(kAdamW, arrays, ranges, device.compute());
                                 });
  auto expected = cast_on<std::uint16_t>(cpu(), after.weights, DType::float32, DType::float16, 0);
  expected.resize(5'001);
  CHECK(std::equal(expected.begin(), expected.end(), after.rounded.begin()));
  CHECK(after.rounded[5'001] == 7);
}

namespace {

// A shard of a model with 16-bit weights.
struct HalfShard {
  DType weight_dtype;
  std::vector<std::uint16_t> weights, first, second, third;
  std::vector<float> grads;

  HalfShard(DType dtype, std::size_t numel)
      : weight_dtype(dtype),
        weights(numel),
        first(numel),
        second(numel),
        third(numel),
        grads(random_values(numel, 1)) {
    auto squares = random_values(numel, 4);
    auto larger = random_values(numel, 3);  // means of squares that are above the squares of means
    auto means = random_values(numel, 5);
    for (std::size_t i = 0; i < numel; ++i) {
      squares[i] *= squares[i];
      means[i] *= 0.5F;
      larger[i] = 10.0F + larger[i] * larger[i] + 1.1F * squares[i] * squares[i] +
                  1.1F * means[i] * means[i];
    }
    // Includes subnormal and very large weights. No infinite ones, because they lead to NaNs, which
    // may lose their payload.
    auto values = random_values(numel, 2);
    for (std::size_t i = 0; i < numel; i += 7) {
      values[i] *= i % 2 == 0 ? 1e-6F : 10'000.0F;
    }
    kernels::cast(values.data(), DType::float32, weights.data(), dtype, numel);
    kernels::cast(larger.data(), DType::float32, first.data(), DType::bfloat16, numel);
    kernels::cast(squares.data(), DType::float32, second.data(), DType::bfloat16, numel);
    kernels::cast(means.data(), DType::float32, third.data(), DType::bfloat16, numel);
  }
  bool operator==(const HalfShard&) const = default;
};

HalfShard half_updated_on(Device& device, HalfShard shard, bool stochastic, auto&& update) {
  const OnDevice weights(device, shard.weights);
  const OnDevice first(device, shard.first);
  const OnDevice second(device, shard.second);
  const OnDevice third(device, shard.third);
  const OnDevice grads(device, shard.grads);
  update(device, UpdateArrays{.weights = weights.data(),
                              .grads = grads.data(),
                              .first = first.data(),
                              .second = second.data(),
                              .third = third.data(),
                              .rounded = nullptr,
                              .weight_dtype = shard.weight_dtype,
                              .moment_dtype = DType::bfloat16,
                              .stochastic = stochastic,
                              .noise_key = 0x0123456789abcdefULL,
                              .noise_first = 4'294'960'000U});  // wraps around
  shard.weights = weights.values();
  shard.first = first.values();
  shard.second = second.values();
  shard.third = third.values();
  return shard;
}

}  // namespace

TEST_CASE("updates of 16-bit weights give the CPU's bits, rounded to nearest and stochastically") {
  std::int64_t numel = 0;
  const auto ranges = odd_ranges(numel);
  for (const DType dtype : kHalves) {
    for (const bool stochastic : {false, true}) {
      CAPTURE(to_string(dtype));
      CAPTURE(stochastic);
      const HalfShard before(dtype, static_cast<std::size_t>(numel));
      for (const auto& step : test::steps_of_all_rules(3)) {
        CAPTURE(test::rule_of(step));
        const auto update = [&](Device& device, const UpdateArrays& arrays) {
          device.update(step, arrays, ranges, device.compute());
        };
        const HalfShard after = half_updated_on(gpu(), before, stochastic, update);
        CHECK((after == half_updated_on(cpu(), before, stochastic, update)));
        CHECK_FALSE((after == before));
      }
    }
  }
}

TEST_CASE("one 16-bit dtype becomes the other as on the CPU") {
  const auto values = wide_values(20'011, 8);
  for (const DType from : kHalves) {
    const DType to = from == DType::bfloat16 ? DType::float16 : DType::bfloat16;
    const auto half = cast_on<std::uint16_t>(cpu(), values, DType::float32, from, 0);
    CHECK(cast_on<std::uint16_t>(gpu(), half, from, to, 4) ==
          cast_on<std::uint16_t>(cpu(), half, from, to, 4));
  }
}

TEST_CASE("every rule gives the CPU's bits") {
  std::int64_t numel = 0;
  const auto ranges = odd_ranges(numel);
  for (int variant = 0; variant < 4; ++variant) {
    const bool is_first = variant % 2 == 0;
    for (const auto& step : test::steps_of_all_rules(is_first ? 1 : 5, variant > 1)) {
      CAPTURE(test::rule_of(step));
      CAPTURE(variant);
      const UpdateCase options{.states = test::states_of(step), .rounds = is_first};
      const auto update = [&](Device& device, const UpdateArrays& arrays) {
        device.update(step, arrays, ranges, device.compute());
      };
      const Shard before(static_cast<std::size_t>(numel), static_cast<unsigned>(variant) + 1);
      const Shard after = updated_on(gpu(), before, options, update);
      CHECK((after == updated_on(cpu(), before, options, update)));
      CHECK_FALSE((after == before));
    }
  }
}

TEST_CASE("arrays at odd addresses are refused") {
  const Shard shard(64, 1);
  const std::vector<UpdateRange> ranges{{.begin = 0, .numel = 60}};
  CHECK_THROWS(
      updated_on(gpu(), shard, {.offset = 1}, [&](Device& device, const UpdateArrays& arrays) {
        device.update(kAdamW, arrays, ranges, device.compute());
      }));
}
