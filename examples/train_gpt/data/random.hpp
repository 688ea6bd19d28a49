// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>

namespace train_gpt {

/// Returns 64 random bits as a pure function of the counters, so that a checkpoint needs no
/// generator state. Each counter is mixed in with the finaliser of SplitMix64 (Steele, Lea, Flood,
/// OOPSLA 2014).
inline std::uint64_t random_bits(std::initializer_list<std::uint64_t> counters) {
  std::uint64_t state = 0;
  for (const std::uint64_t counter : counters) {
    state += counter + 0x9E3779B97F4A7C15u;
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
    state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
    state ^= state >> 31;
  }
  return state;
}

/// Returns a random number in [0, 1) as a pure function of the counters.
inline double random_fraction(std::initializer_list<std::uint64_t> counters) {
  return static_cast<double>(random_bits(counters) >> 11) * 0x1.0p-53;
}

}  // namespace train_gpt
