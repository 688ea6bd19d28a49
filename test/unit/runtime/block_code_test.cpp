// SPDX-License-Identifier: Apache-2.0
#include "kernels/block_code.hpp"

#include "kernels/kernels.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <vector>

namespace {

using acc::BlockCode;
using acc::DType;
using acc::kernels::available_kernels;
using acc::kernels::coded_nbytes;
using acc::kernels::decode;
using acc::kernels::encode;
using acc::kernels::kCodeBlock;
using acc::kernels::Kernels;

constexpr BlockCode kCodes[] = {
    {.bits = 8}, {.bits = 7}, {.bits = 8, .rotated = true}, {.bits = 7, .rotated = true}};

double limit_of(BlockCode code) {
  return code.bits == 8 ? 127.0 : 63.0;
}

/// The values of the rotated block, in any order: those of the Hadamard matrix, whose entry (i, j)
/// has the sign of the parity of i and j.
std::vector<double> rotated(const std::vector<float>& block) {
  std::vector<double> result(kCodeBlock);
  for (std::size_t i = 0; i < kCodeBlock; ++i) {
    for (std::size_t j = 0; j < kCodeBlock; ++j) {
      const double value = static_cast<double>(block[j]) / 16.0;
      result[i] += std::popcount(i & j) % 2 == 0 ? value : -value;
    }
  }
  return result;
}

float scale_of(const std::vector<std::byte>& coded) {
  float scale = 0.0F;
  std::memcpy(&scale, coded.data(), sizeof scale);
  return scale;
}

using NumberRule = std::function<float(std::size_t)>;

float ripple(std::size_t i) {
  return std::sin(static_cast<float>(i * i + 1));
}

std::vector<float> block_of(const NumberRule& rule) {
  std::vector<float> block(kCodeBlock);
  for (std::size_t i = 0; i < kCodeBlock; ++i) {
    block[i] = rule(i);
  }
  return block;
}

std::vector<float> there_and_back(BlockCode code, const std::vector<float>& values) {
  std::vector<std::byte> coded(coded_nbytes(code, values.size()));
  std::vector<float> read(values.size());
  encode(code, values.data(), DType::float32, values.size(), coded.data());
  decode(code, coded.data(), 0, values.size(), read.data(), DType::float32);
  return read;
}

}  // namespace

TEST_CASE("coded blocks: within the bounds of their scale, the same bits in every variant") {
  struct Values {
    const char* name;
    NumberRule rule;
  };
  for (const Values& values :
       {Values{"waves", ripple}, Values{"one number", [](auto) { return 0.37F; }},
        Values{"an outlier", [](auto i) { return i == 77 ? 1000.0F : ripple(i); }},
        Values{"a single number", [](auto i) { return i == 200 ? -3.0F : 0.0F; }},
        Values{"large", [](auto i) { return 2e37F * ripple(i); }},
        Values{"small", [](auto i) { return 1e-25F * ripple(i); }}}) {
    for (const BlockCode code : kCodes) {
      CAPTURE(values.name);
      CAPTURE(code.bits);
      CAPTURE(code.rotated);
      const std::vector<float> block = block_of(values.rule);
      std::vector<std::byte> coded(coded_nbytes(code, kCodeBlock));
      CHECK(coded.size() == (code.bits == 8 ? 260 : 228));
      encode(code, block.data(), DType::float32, kCodeBlock, coded.data());
      std::vector<float> read(kCodeBlock);
      decode(code, coded.data(), 0, kCodeBlock, read.data(), DType::float32);

      const auto scale = static_cast<double>(scale_of(coded));
      std::vector<double> sent(block.begin(), block.end());
      if (code.rotated) {
        sent = rotated(block);
      }
      double largest = 0.0;
      for (const double value : sent) {
        largest = std::max(largest, std::abs(value));
      }
      CHECK(scale == doctest::Approx(largest / limit_of(code)).epsilon(1e-5));
      double squares = 0.0;
      double most = 0.0;
      for (std::size_t i = 0; i < kCodeBlock; ++i) {
        const double error = static_cast<double>(read[i]) - static_cast<double>(block[i]);
        squares += error * error;
        most = std::max(most, std::abs(error));
      }
      const double slack = 1.0 + 1e-4;
      CHECK(std::sqrt(squares) <= 8.0 * scale * slack);
      if (!code.rotated) {
        CHECK(most <= scale / 2.0 * slack);
        for (std::size_t i = 0; i < kCodeBlock; ++i) {
          const float inverse = static_cast<float>(limit_of(code)) / static_cast<float>(largest);
          REQUIRE(read[i] == std::nearbyint(block[i] * inverse) * static_cast<float>(scale));
        }
      }
      for (const Kernels* each : available_kernels()) {
        CAPTURE(each->name);
        std::vector<std::byte> again(coded.size());
        std::vector<float> read_again(kCodeBlock);
        each->encode_block(code, block.data(), again.data());
        each->decode_block(code, again.data(), read_again.data());
        CHECK(again == coded);
        CHECK(std::memcmp(read_again.data(), read.data(), sizeof(float) * kCodeBlock) == 0);
      }
    }
  }
}

TEST_CASE("coded blocks: a rotation takes the error of an outlier from the numbers beside it") {
  const std::vector<float> block = block_of([](auto i) { return i == 9 ? 100.0F : ripple(i); });
  const auto error = [&](BlockCode code) {
    const std::vector<float> read = there_and_back(code, block);
    double sum = 0.0;
    for (std::size_t i = 0; i < kCodeBlock; ++i) {
      sum += std::abs(static_cast<double>(read[i] - block[i]));
    }
    return sum / kCodeBlock;
  };
  CHECK(error({.bits = 7, .rotated = true}) < 0.7 * error({.bits = 7}));
}

TEST_CASE("coded blocks: zeros, tiny numbers, infinities and NaN, a block each") {
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  for (const BlockCode code : kCodes) {
    CAPTURE(code.bits);
    CAPTURE(code.rotated);
    for (const float least : {0.0F, -0.0F, kTiny, 1e-38F, 1e-32F}) {
      const auto read = there_and_back(code, std::vector<float>(300, least));
      CHECK(std::ranges::all_of(read, [](float each) { return each == 0.0F; }));
    }
    for (const float broken : {kInfinite, -kInfinite, kNan}) {
      std::vector<float> values(3 * kCodeBlock, 1.0F);
      values[kCodeBlock + 3] = broken;
      const auto read = there_and_back(code, values);
      for (std::size_t i = 0; i < values.size(); ++i) {
        REQUIRE(std::isnan(read[i]) == (i / kCodeBlock == 1));
      }
    }
    // Both signs, and beyond what a rotation can add up.
    std::vector<float> both(2 * kCodeBlock, kInfinite);
    both[1] = -kInfinite;
    std::fill(both.begin() + kCodeBlock, both.end(), std::numeric_limits<float>::max());
    const auto read = there_and_back(code, both);
    CHECK(std::isnan(read[0]));
    CHECK((code.rotated ? std::isnan(read.back()) : read.back() > 3.4e38F));
  }
}

TEST_CASE("coded arrays: every length and dtype, and any block first") {
  for (const BlockCode code : kCodes) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
      for (const std::size_t numel : {std::size_t{0}, std::size_t{1}, std::size_t{255},
                                      std::size_t{256}, std::size_t{257}, std::size_t{1003}}) {
        CAPTURE(code.bits);
        CAPTURE(code.rotated);
        CAPTURE(std::string(to_string(dtype)));
        CAPTURE(numel);
        std::vector<float> wide(numel);
        for (std::size_t i = 0; i < numel; ++i) {
          wide[i] = ripple(i);
        }
        std::vector<std::byte> values(numel * nbytes_of(dtype));
        acc::kernels::cast(wide.data(), DType::float32, values.data(), dtype, numel);
        acc::kernels::cast(values.data(), dtype, wide.data(), DType::float32, numel);
        const auto expected = there_and_back(code, wide);
        std::vector<std::byte> coded(coded_nbytes(code, numel));
        CHECK(coded.size() == (numel + 255) / 256 * (code.bits == 8 ? 260 : 228));
        encode(code, values.data(), dtype, numel, coded.data());
        for (std::size_t first = 0; first < numel; first += kCodeBlock) {
          std::vector<float> rounded(expected.begin() + static_cast<std::ptrdiff_t>(first),
                                     expected.end());
          std::vector<std::byte> narrow(rounded.size() * nbytes_of(dtype));
          acc::kernels::cast(rounded.data(), DType::float32, narrow.data(), dtype, rounded.size());
          std::vector<std::byte> read(narrow.size());
          decode(code, coded.data(), first, rounded.size(), read.data(), dtype);
          CHECK(read == narrow);
        }
      }
    }
  }
}
