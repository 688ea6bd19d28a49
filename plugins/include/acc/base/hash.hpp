// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace acc {

constexpr std::uint64_t kFnv1aStart = 0xcbf29ce484222325U;

/// One step of the 64-bit FNV-1a: with a byte, or with a number as a whole.
constexpr std::uint64_t fnv1a_step(std::uint64_t hash, std::uint64_t value) noexcept {
  return (hash ^ value) * 0x100000001b3U;
}

/// Returns the 64-bit FNV-1a hash of a text, which is the same on all machines. start: for a hash
/// that depends on a seed.
constexpr std::uint64_t fnv1a(std::string_view text, std::uint64_t start = kFnv1aStart) noexcept {
  std::uint64_t hash = start;
  for (const char c : text) {
    hash = fnv1a_step(hash, static_cast<unsigned char>(c));
  }
  return hash;
}

}  // namespace acc
