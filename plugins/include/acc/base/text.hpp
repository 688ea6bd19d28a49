#pragma once

#include "acc/base/export.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc {

/// Rising numbers as the kernel writes lists of them: "0-3,8,10-11".
ACC_API std::string number_list(const std::vector<int>& numbers);

/// A word as a shell takes it, in quotes only where it must be.
ACC_API std::string shell_quoted(const std::string& word);

/// An IPv6 address without the brackets that it has in a URL, `[::1]`; any other text unchanged.
inline std::string without_brackets(const std::string& host) {
  return host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
}

/// Text from outside (another machine, a file, a variable, a worker) as part of one line on a
/// terminal: printable UTF-8 and tabs as they are; control characters, newlines and characters that
/// change the direction of the text as "\x1b", byte by byte; bytes that are no UTF-8 likewise.
ACC_API std::string printable(std::string_view text);

/// The same for text of several lines: its newlines stay.
ACC_API std::string printable_lines(std::string_view text);

}  // namespace acc
