#pragma once

#include "acc/base/export.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace acc {

/// Formats ascending numbers as the Linux kernel formats CPU lists: "0-3,8,10-11".
ACC_API std::string number_list(const std::vector<int>& numbers);

/// Quotes a word for a POSIX shell. A word without special characters is returned unchanged.
ACC_API std::string shell_quoted(const std::string& word);

/// Returns an IPv6 address without the brackets that it has in a URL (`[::1]`). Returns any other
/// text unchanged.
inline std::string without_brackets(const std::string& host) {
  return host.starts_with('[') && host.ends_with(']') ? host.substr(1, host.size() - 2) : host;
}

/// Makes untrusted text (from another machine, a file, a variable, a worker) safe to print within
/// one line on a terminal. Printable UTF-8 and tabs stay. Each byte of a control character, of a
/// newline, of a character that changes the direction of the text, and of invalid UTF-8 is escaped
/// as "\x1b".
ACC_API std::string printable(std::string_view text);

/// Does the same for text of several lines: newlines stay.
ACC_API std::string printable_lines(std::string_view text);

}  // namespace acc
