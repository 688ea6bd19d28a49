// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace acc {

/// Returns the 64-bit FNV-1a hash of a text, which is the same on all machines. start: for a hash
/// that depends on a seed.
constexpr std::uint64_t fnv1a(std::string_view text,
                              std::uint64_t start = 0xcbf29ce484222325U) noexcept {
  std::uint64_t hash = start;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace acc
