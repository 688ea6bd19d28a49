// SPDX-License-Identifier: Apache-2.0
#include "acc/runtime/initializer.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace {

std::vector<float> draw(const acc::Initializer& initializer, std::uint64_t stream,
                        std::int64_t offset, std::size_t numel) {
  std::vector<float> values(numel);
  initializer(stream, offset, values);
  return values;
}

struct Moments {
  double mean = 0.0, variance = 0.0, kurtosis = 0.0, neighbours = 0.0;
};

Moments moments(const std::vector<float>& values) {
  Moments m;
  const auto numel = static_cast<double>(values.size());
  for (const float value : values) {
    m.mean += static_cast<double>(value) / numel;
  }
  double previous = 0.0;
  double fourth = 0.0;
  for (const float value : values) {
    const double d = static_cast<double>(value) - m.mean;
    m.variance += d * d / numel;
    fourth += d * d * d * d / numel;
    m.neighbours += d * previous / numel;
    previous = d;
  }
  m.kurtosis = fourth / (m.variance * m.variance);
  m.neighbours /= m.variance;
  return m;
}

}  // namespace

TEST_CASE("any division into slices gives the same values") {
  constexpr std::int64_t kNumel = 5003;
  std::mt19937 generator(1);
  for (const auto& initializer : {acc::normal(0.02F), acc::uniform(-1.0F, 3.0F)}) {
    const auto whole = draw(initializer, 42, 0, kNumel);
    for (int round = 0; round < 50; ++round) {
      std::vector<float> pieces;
      while (std::ssize(pieces) < kNumel) {
        const auto offset = std::ssize(pieces);
        const auto count = std::min<std::int64_t>(
            kNumel - offset, std::uniform_int_distribution<>(1, 700)(generator));
        const auto piece = draw(initializer, 42, offset, static_cast<std::size_t>(count));
        pieces.insert(pieces.end(), piece.begin(), piece.end());
      }
      REQUIRE(pieces == whole);
    }
  }
}

TEST_CASE("offsets beyond 32 bits give different values") {
  const auto normal = acc::normal(1.0F);
  const auto far = draw(normal, 1, (std::int64_t{1} << 36) + 3, 100);
  CHECK(far != draw(normal, 1, 3, 100));
  const auto from_before = draw(normal, 1, (std::int64_t{1} << 36) + 1, 102);
  CHECK(std::equal(far.begin(), far.end(), from_before.begin() + 2));
}

TEST_CASE("streams that differ only in their upper 32 bits give different values") {
  const auto normal = acc::normal(1.0F);
  const auto first = draw(normal, 1, 0, 64);
  CHECK(first != draw(normal, 2, 0, 64));
  CHECK(first != draw(normal, 1 + (std::uint64_t{1} << 32), 0, 64));
  CHECK(first == draw(normal, 1, 0, 64));
}

TEST_CASE("normal has the moments and tails of a Gaussian") {
  constexpr std::size_t kNumel = 4'000'000;
  const auto values = draw(acc::normal(0.02F), 7, 11, kNumel);
  const Moments m = moments(values);
  // Tolerances of five standard errors.
  CHECK(std::abs(m.mean) < 5 * 0.02 / 2000);
  CHECK(std::sqrt(m.variance) == doctest::Approx(0.02).epsilon(0.002));
  CHECK(m.kurtosis == doctest::Approx(3.0).epsilon(0.005));
  CHECK(std::abs(m.neighbours) < 5.0 / 2000);
  const auto beyond = [&](float sigmas) {
    return static_cast<double>(
               std::count_if(values.begin(), values.end(),
                             [&](float value) { return std::abs(value) > sigmas * 0.02F; })) /
           kNumel;
  };
  for (const float sigmas : {0.5F, 1.0F, 2.0F, 3.0F, 4.0F}) {
    const double expected = std::erfc(static_cast<double>(sigmas) / std::sqrt(2.0));
    CAPTURE(sigmas);
    CHECK(std::abs(beyond(sigmas) - expected) < 5 * std::sqrt(expected / kNumel));
  }
  CHECK(
      std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); }));
}

TEST_CASE("uniform stays below its upper end and covers its range evenly") {
  const auto values = draw(acc::uniform(-1.0F, 3.0F), 9, 0, 1'000'000);
  const Moments m = moments(values);
  CHECK(*std::min_element(values.begin(), values.end()) >= -1.0F);
  CHECK(*std::max_element(values.begin(), values.end()) < 3.0F);
  CHECK(m.mean == doctest::Approx(1.0).epsilon(0.01));
  CHECK(m.variance == doctest::Approx(16.0 / 12).epsilon(0.01));
  // Here the largest unit value would round up to `high`.
  const float high = std::nextafter(1e8F, 2e8F);
  for (const float value : draw(acc::uniform(1e8F, high), 3, 0, 1000)) {
    REQUIRE(value == 1e8F);
  }
}

TEST_CASE("the generator is Philox4x32-10") {
  // Output for key 0, counter 0 in the known-answer file of the paper's code: 6627e8d5 e169c58d
  // bc57ac4c 9b00dbd8; uniform(0, 2^24) shows their upper 24 bits.
  const auto values = draw(acc::uniform(0.0F, 0x1p24F), 0, 0, 4);
  CHECK(values == std::vector<float>{0x6627e8, 0xe169c5, 0xbc57ac, 0x9b00db});
}

TEST_CASE("a constant fills the whole range") {
  CHECK(draw(acc::zeros(), 1, 5, 3) == std::vector<float>(3, 0.0F));
  CHECK(draw(acc::ones(), 1, 5, 3) == std::vector<float>(3, 1.0F));
  CHECK(draw(acc::constant(2.5F), 1, 5, 3) == std::vector<float>(3, 2.5F));
}
