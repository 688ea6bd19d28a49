// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace acc::data {

/// Finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection of 64 bits.
constexpr std::uint64_t mixed(std::uint64_t value) noexcept {
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

/// Returns 64 random bits as a pure function of the counters.
constexpr std::uint64_t random_bits(std::initializer_list<std::uint64_t> counters) noexcept {
  std::uint64_t state = 0;
  for (const std::uint64_t counter : counters) {
    state = mixed(state + counter + 0x9E3779B97F4A7C15U);
  }
  return state;
}

/// A pseudo-random permutation of [0, size) without a table: a generalised Feistel network on pairs
/// (row, column), applied until the result is below `size` (Black and Rogaway, "Ciphers with
/// arbitrary finite domains", CT-RSA 2002, section 4 and 5). The pairs exceed `size` by less than
/// its square root, so a second application is rare.
class Permutation {
 public:
  /// size: 1 to 2^62. key: selects the permutation.
  Permutation(std::uint64_t size, std::uint64_t key) noexcept
      : size_(size),
        rows_(std::max<std::uint64_t>(1, root_above(size))),
        columns_((size + rows_ - 1) / rows_) {
    for (std::uint64_t round = 0; round < keys_.size(); ++round) {
      keys_[round] = random_bits({key, round});
    }
  }

  [[nodiscard]] std::uint64_t operator()(std::uint64_t index) const noexcept {
    do {
      index = once(index);
    } while (index >= size_);
    return index;
  }

 private:
  /// Least number whose square is at least `size`.
  static std::uint64_t root_above(std::uint64_t size) noexcept {
    auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(size)));
    while (root * root < size) {
      ++root;
    }
    while (root > 1 && (root - 1) * (root - 1) >= size) {
      --root;
    }
    return root;
  }

  /// Adds to `value` a random number below `size` that depends on `other`, modulo `size`.
  static std::uint64_t shifted(std::uint64_t value, std::uint64_t other, std::uint64_t key,
                               std::uint64_t size) noexcept {
    __extension__ using Wide = unsigned __int128;
    const std::uint64_t bits = mixed(mixed(other + key) ^ key);
    value += static_cast<std::uint64_t>((Wide{bits} * size) >> 64U);
    return value >= size ? value - size : value;
  }

  [[nodiscard]] std::uint64_t once(std::uint64_t index) const noexcept {
    std::uint64_t row = index / columns_;
    std::uint64_t column = index % columns_;
    for (std::size_t round = 0; round < keys_.size(); round += 2) {
      row = shifted(row, column, keys_[round], rows_);
      column = shifted(column, row, keys_[round + 1], columns_);
    }
    return row * columns_ + column;
  }

  std::uint64_t size_, rows_, columns_;
  std::array<std::uint64_t, 8> keys_{};
};

}  // namespace acc::data
