// SPDX-License-Identifier: Apache-2.0
#include "acc/base/text.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <limits>

namespace acc {
namespace {

struct Character {
  char32_t point = 0;
  std::size_t size = 0;  ///< length in bytes; 0: not valid UTF-8 (RFC 3629)
};

/// Decodes the first character of a text that is not empty. Refuses overlong encodings, surrogates
/// and code points above U+10FFFF, as RFC 3629 section 3 requires.
Character first_character(std::string_view text) {
  /// One row per number of bytes, from 1 to 4.
  struct Form {
    unsigned mask, lead;  ///< the first byte & mask == lead
    char32_t smallest;    ///< smallest code point that needs this many bytes
  };
  constexpr std::array<Form, 4> kForms = {
      {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}}};
  const auto lead = static_cast<unsigned char>(text.front());
  for (std::size_t more = 0; more < kForms.size(); ++more) {
    const Form& form = kForms[more];
    if ((lead & form.mask) != form.lead) {
      continue;
    }
    char32_t point = lead & ~form.mask & 0xff;
    for (std::size_t i = 1; i <= more; ++i) {
      if (i >= text.size() || (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) {
        return {};
      }
      point = point << 6 | (static_cast<unsigned char>(text[i]) & 0x3f);
    }
    const bool is_surrogate = point >= 0xd800 && point < 0xe000;
    return point < form.smallest || point > 0x10ffff || is_surrogate ? Character{}
                                                                     : Character{point, more + 1};
  }
  return {};
}

/// True for a character that can move the cursor or reorder text on a terminal: the C0 controls
/// with DEL, and C1, which also contains escape sequences; Unicode's line and paragraph separators;
/// and the characters that change the direction of text (Unicode 15, property Bidi_Control).
bool moves_text(char32_t point) {
  return (point < 0x20 && point != '\t') || (point >= 0x7f && point < 0xa0) ||
         (point >= 0x2028 && point <= 0x202e) || (point >= 0x2066 && point <= 0x2069) ||
         point == 0x200e || point == 0x200f || point == 0x061c;
}

/// Escapes dangerous characters and invalid bytes as "\x1b", one escape per byte.
std::string escaped(std::string_view text, bool keeps_newlines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character next = first_character(text);
    const std::size_t size = next.size == 0 ? 1 : next.size;
    if (next.size != 0 && (!moves_text(next.point) || (keeps_newlines && next.point == '\n'))) {
      out.append(text.substr(0, size));
    } else {
      for (const char c : text.substr(0, size)) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
      }
    }
    text.remove_prefix(size);
  }
  return out;
}

}  // namespace

std::string number_list(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) {
      ++last;
    }
    text += (i == 0 ? "" : ",") + std::to_string(numbers[i]);
    if (last > i) {
      text += "-" + std::to_string(numbers[last]);
    }
    i = last + 1;
  }
  return text;
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
    return word;
  }
  std::string quoted = "'";
  for (const char c : word) {
    quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return quoted + "'";
}

std::string printable(std::string_view text) {
  return escaped(text, false);
}

std::string printable_lines(std::string_view text) {
  return escaped(text, true);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const auto end = std::min(text.find(separator), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return parts;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t";
  const auto first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string upper(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return result;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
  }
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_whole = error == std::errc() && end == text.data() + text.size() && !text.empty();
  return is_whole ? std::optional(value) : std::nullopt;
}

std::optional<int> read_number(std::string_view text) {
  const bool digits = text.find_first_not_of("0123456789") == std::string_view::npos;
  const auto value = digits ? parse_integer(text) : std::nullopt;
  return value && *value <= std::numeric_limits<int>::max()
             ? std::optional(static_cast<int>(*value))
             : std::nullopt;
}

std::optional<Range> read_range(std::string_view text) {
  const auto dash = text.find('-');
  const auto first = read_number(text.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : read_number(text.substr(dash + 1));
  return first && last && *first <= *last ? std::optional(Range{*first, *last}) : std::nullopt;
}

std::string joined(const std::vector<int>& numbers) {
  return fmt::format("{}", fmt::join(numbers, ","));
}

std::vector<std::string_view> entries_of(std::string_view text, char separator) {
  std::vector<std::string_view> entries = split(text, separator);
  if (text.empty() || text.ends_with(separator)) {
    entries.emplace_back();
  }
  return entries;
}

}  // namespace acc
