// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"

#include <cstdint>
#include <optional>
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

/// Splits text at a separator: `a|b` → {a, b}. Keeps empty parts, except after a final separator;
/// an empty text has no parts. The parts point into `text`.
ACC_API std::vector<std::string_view> split(std::string_view text, char separator);
std::vector<std::string_view> split(std::string&& text, char separator) = delete;
/// Removes blanks and tabs at both ends.
ACC_API std::string_view trimmed(std::string_view text);
ACC_API std::string lower(std::string_view text);
ACC_API std::string upper(std::string_view text);
ACC_API std::optional<std::int64_t> parse_integer(std::string_view text);

/// Parses a number of digits only, without sign or spaces. Empty if it is none or exceeds int.
ACC_API std::optional<int> read_number(std::string_view text);

/// Inclusive range of numbers.
struct Range {
  int first = 0;
  int last = 0;
};

/// Parses `N` or `FIRST-LAST`. Empty if it is neither.
ACC_API std::optional<Range> read_range(std::string_view text);

/// Formats numbers as `0,1,5`.
ACC_API std::string joined(const std::vector<int>& numbers);

/// Splits text at a separator. Unlike `split`, keeps an empty text and an empty last
/// entry.
ACC_API std::vector<std::string_view> entries_of(std::string_view text, char separator = ',');

}  // namespace acc
