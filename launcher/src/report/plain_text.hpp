#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace acc::launcher {

/// At most `max_bytes` of `text`, cut between two characters of UTF-8; "..." at its end says so.
std::string clipped(std::string_view text, std::size_t max_bytes);

}  // namespace acc::launcher
