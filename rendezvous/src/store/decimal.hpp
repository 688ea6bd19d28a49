// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace acc::rendezvous {

/// Parses the number at the start of `text` like strtoll: leading blanks, an optional sign, digits;
/// the rest is ignored. Returns nothing if there is no digit or the number does not fit 64 bits.
/// PyTorch's ADD reads stored values this way.
std::optional<std::int64_t> leading_integer(std::string_view text) noexcept;

/// Returns `a + b` with two's complement wrap-around, like PyTorch's ADD.
std::int64_t wrapping_add(std::int64_t a, std::int64_t b) noexcept;

}  // namespace acc::rendezvous
