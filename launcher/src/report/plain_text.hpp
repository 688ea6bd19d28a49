#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace acc::launcher {

/// Returns `text` shortened to at most `max_bytes`, at a boundary between UTF-8 characters. A
/// shortened text ends with "...".
std::string clipped(std::string_view text, std::size_t max_bytes);

}  // namespace acc::launcher
