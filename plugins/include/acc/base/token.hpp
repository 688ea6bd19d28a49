// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace acc {

/// Returns 128 random bits from the kernel as 32 lowercase hexadecimal digits; suitable as a
/// secret. Throws Error(internal) if the kernel has no random numbers.
std::string random_token();

/// True if `text` has the form that `random_token` returns.
bool is_token(std::string_view text) noexcept;

}  // namespace acc
