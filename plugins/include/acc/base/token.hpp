#pragma once

#include <string>
#include <string_view>

namespace acc {

/// 128 bits of the kernel's random numbers as 32 lowercase hexadecimal digits: what nobody can
/// guess. Throws Error(internal).
std::string random_token();

/// True if `text` has that form.
bool is_token(std::string_view text) noexcept;

}  // namespace acc
