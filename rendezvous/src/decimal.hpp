#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace acc::rendezvous {

/// The number that `text` starts with, after blanks and a sign, as C's strtoll reads it; nothing
/// where there is no digit or no 64-bit value. ADD reads stored values this way.
std::optional<std::int64_t> leading_integer(std::string_view text) noexcept;

/// `a + b` in two's complement, as ADD does.
std::int64_t wrapping_add(std::int64_t a, std::int64_t b) noexcept;

}  // namespace acc::rendezvous
