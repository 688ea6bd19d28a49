// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace acc::rendezvous {

/// Parses the number at the start of `text` like strtoll: leading blanks, an optional sign, digits;
/// the rest is ignored. Returns nothing if there is no digit or the number does not fit 64 bits.
/// PyTorch's ADD reads stored values this way.
inline std::optional<std::int64_t> leading_integer(std::string_view text) noexcept {
  const auto start = text.find_first_not_of(" \t\n\v\f\r");
  if (start == std::string_view::npos) {
    return std::nullopt;
  }
  text.remove_prefix(start);
  if (text.starts_with('+')) {  // from_chars accepts only '-'
    text.remove_prefix(1);
    if (text.starts_with('-')) {
      return std::nullopt;
    }
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

/// Returns `a + b` with two's complement wrap-around, like PyTorch's ADD.
inline std::int64_t wrapping_add(std::int64_t a, std::int64_t b) noexcept {
  // Overflow of signed integers is undefined; that of unsigned ones wraps around.
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

}  // namespace acc::rendezvous
