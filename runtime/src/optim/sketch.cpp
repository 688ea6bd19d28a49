// SPDX-License-Identifier: Apache-2.0
#include "optim/sketch.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace acc::optim {
namespace {

constexpr std::int64_t kWidth = 4096;
constexpr std::size_t kNumbers = std::tuple_size_v<decltype(Sketch::numbers)>;

constexpr std::uint64_t splitmix64(std::uint64_t seed) {
  std::uint64_t word = seed + 0x9E3779B97F4A7C15U;
  word = (word ^ (word >> 30U)) * 0xBF58476D1CE4E5B9U;
  word = (word ^ (word >> 27U)) * 0x94D049BB133111EBU;
  return word ^ (word >> 31U);
}

float sign_of(std::int64_t index, std::size_t bit) {
  return (splitmix64(static_cast<std::uint64_t>(index)) >> bit & 1U) != 0 ? -1.0F : 1.0F;
}

/// Signs of the elements of a block, by number.
using Signs = std::array<std::array<float, kWidth>, kNumbers>;

const Signs& signs() {
  static const std::unique_ptr<const Signs> made = [] {
    auto all = std::make_unique<Signs>();
    for (std::size_t k = 0; k < kNumbers; ++k) {
      for (std::int64_t j = 0; j < kWidth; ++j) {
        (*all)[k][static_cast<std::size_t>(j)] = sign_of(j, k);
      }
    }
    return all;
  }();
  return *made;
}

/// The sum of the products, in several partial sums that the compiler computes at once.
double dot(const float* left, const float* right, std::size_t count) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> sums{};
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += left[i + lane] * right[i + lane];
    }
  }
  double total = 0.0;
  for (; i < count; ++i) {
    total += static_cast<double>(left[i]) * right[i];
  }
  for (const float sum : sums) {
    total += sum;
  }
  return total;
}

}  // namespace

void Sketch::add(std::span<const float> values, std::int64_t begin) {
  while (!values.empty()) {
    const std::int64_t inside = begin % kWidth;
    const std::size_t count = std::min(values.size(), static_cast<std::size_t>(kWidth - inside));
    squares += dot(values.data(), values.data(), count);
    for (std::size_t k = 0; k < kNumbers; ++k) {
      numbers[k] += dot(values.data(), signs()[k].data() + inside, count) *
                    sign_of(begin / kWidth % kWidth, k + kNumbers);
    }
    values = values.subspan(count);
    begin += static_cast<std::int64_t>(count);
  }
}

Sketch Sketch::times(double factor) const {
  Sketch result{squares * factor * factor, numbers};
  for (double& number : result.numbers) {
    number *= factor;
  }
  return result;
}

}  // namespace acc::optim
