// SPDX-License-Identifier: Apache-2.0
#include "store/decimal.hpp"

#include <charconv>

namespace acc::rendezvous {

std::optional<std::int64_t> leading_integer(std::string_view text) noexcept {
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

std::int64_t wrapping_add(std::int64_t a, std::int64_t b) noexcept {
  // Overflow of signed integers is undefined; that of unsigned ones wraps around.
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

}  // namespace acc::rendezvous
