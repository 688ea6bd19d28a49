#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace acc::launcher {

/// At most `max_bytes` of `text`, cut between two characters of UTF-8; "..." at its end says so.
std::string clipped(std::string_view text, std::size_t max_bytes);

/// `text` as a terminal may show it: printable UTF-8, tabs and newlines as they are; control
/// characters and bytes that are no UTF-8 as "\x1b".
std::string harmless(std::string_view text);

}  // namespace acc::launcher
