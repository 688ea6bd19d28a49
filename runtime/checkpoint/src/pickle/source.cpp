// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/pickle/source.hpp"

#include "acc/checkpoint/files/errors.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

namespace acc::checkpoint::pickle {
namespace {

// Appends a code point as UTF-8.
void append_utf8(std::string& out, std::uint32_t point) {
  const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xc0 | point >> 6);
    put(0x80 | (point & 0x3f));
  } else if (point < 0x10000) {
    put(0xe0 | point >> 12);
    put(0x80 | (point >> 6 & 0x3f));
    put(0x80 | (point & 0x3f));
  } else {
    put(0xf0 | point >> 18);
    put(0x80 | (point >> 12 & 0x3f));
    put(0x80 | (point >> 6 & 0x3f));
    put(0x80 | (point & 0x3f));
  }
}

/// Returns the number of bytes of the UTF-8 character at the beginning; 0 if it is not valid.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  if (length > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
  }
  const bool overlong = (first == 0xe0 && byte(1) < 0xa0) || (first == 0xf0 && byte(1) < 0x90);
  const bool too_large = first == 0xf4 && byte(1) > 0x8f;
  return overlong || too_large ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// Parses exactly `count` hexadecimal digits at the beginning of `text` and removes them.
bool take_hex(std::string_view& text, std::size_t count, std::uint32_t& value) {
  if (text.size() < count) {
    return false;
  }
  const char* end = text.data() + count;
  const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
  text.remove_prefix(count);
  return error == std::errc() && stop == end;
}

}  // namespace

void Source::fail(const std::string& what) const {
  throw Error(Errc::config, where_ + ": pickle, byte " + std::to_string(opcode_at_) + ": " + what);
}

void Source::refuse(const std::string& what) const {
  throw Unreadable(where_ + ": pickle, byte " + std::to_string(opcode_at_) + ": " + what);
}

unsigned char Source::opcode() {
  opcode_at_ = next_;
  if (next_ == bytes_.size()) {
    fail("truncated, there is no STOP");
  }
  return static_cast<unsigned char>(bytes_[next_++]);
}

std::string_view Source::take(std::uint64_t nbytes) {
  if (nbytes > bytes_.size() - next_) {
    fail("truncated, " + std::to_string(nbytes) + " bytes are announced and " +
         std::to_string(bytes_.size() - next_) + " are left");
  }
  const std::string_view taken = bytes_.substr(next_, nbytes);
  next_ += nbytes;
  return taken;
}

// Copies into the low bytes of a zeroed integer, which is the little-endian value.
std::uint64_t Source::unsigned_of(std::size_t nbytes) {
  const std::string_view taken = take(nbytes);
  std::uint64_t value = 0;
  std::memcpy(&value, taken.data(), nbytes);  // every supported machine is little-endian
  return value;
}

// BINFLOAT is the only big-endian value in a pickle.
double Source::big_endian_double() {
  return std::bit_cast<double>(__builtin_bswap64(unsigned_of(8)));
}

std::string_view Source::line() {
  const std::size_t end = bytes_.find('\n', next_);
  if (end == std::string_view::npos) {
    fail("truncated, a line has no newline");
  }
  const std::string_view found = bytes_.substr(next_, end - next_);
  next_ = end + 1;
  return found;
}

std::int64_t Source::decimal(std::string_view line) const {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error == std::errc::result_out_of_range) {
    refuse("an integer of more than 64 bits: '" + std::string(line.substr(0, 40)) + "'");
  }
  if (error != std::errc() || stop != line.data() + line.size()) {
    fail("not an integer: '" + std::string(line.substr(0, 40)) + "'");
  }
  return value;
}

double Source::decimal_real(std::string_view line) const {
  double value = 0;
  const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || stop != line.data() + line.size()) {
    fail("not a number: '" + std::string(line.substr(0, 40)) + "'");
  }
  return value;
}

// LONG1 and LONG4 hold integers of any size in two's complement. Only those that fit in 64 bits are
// accepted.
std::int64_t Source::long_of(std::string_view bytes) const {
  const bool negative = !bytes.empty() && (static_cast<unsigned char>(bytes.back()) & 0x80) != 0;
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  // A longer form is accepted if its extra bytes only repeat the sign.
  const char sign = negative ? '\xff' : '\0';
  for (std::size_t i = 8; i < bytes.size(); ++i) {
    if (bytes[i] != sign) {
      refuse("an integer of " + std::to_string(bytes.size()) + " bytes, more than 64 bits");
    }
  }
  std::memcpy(&value, bytes.data(), std::min<std::size_t>(bytes.size(), 8));
  const auto result = static_cast<std::int64_t>(value);
  if (!bytes.empty() && (result < 0) != negative) {
    refuse("an integer of " + std::to_string(bytes.size()) + " bytes, more than 64 bits");
  }
  return result;
}

std::string_view Source::utf8(std::string_view text) const {
  if (!is_ascii(text) && !is_utf8(text)) {
    fail("string that is not UTF-8");
  }
  return text;
}

// Only \u and \U are escapes in this form. Every other byte is a character of Latin-1.
std::string Source::unescaped_unicode(std::string_view line) const {
  std::string text;
  while (!line.empty()) {
    const char c = line.front();
    line.remove_prefix(1);
    const std::size_t digits = line.starts_with('u') ? 4 : line.starts_with('U') ? 8 : 0;
    std::uint32_t point = static_cast<unsigned char>(c);
    if (c == '\\' && digits != 0) {
      line.remove_prefix(1);
      if (!take_hex(line, digits, point) || point > 0x10ffff) {
        fail("invalid escape sequence");
      }
    }
    append_utf8(text, point);
  }
  return text;
}

// Python writes STRING as repr() of the string: in quotes, with backslash escapes.
std::string Source::unquoted(std::string_view line) const {
  if (line.size() < 2 || line.front() != line.back() ||
      (line.front() != '\'' && line.front() != '"')) {
    fail("string without quotes");
  }
  line = line.substr(1, line.size() - 2);
  std::string text;
  while (!line.empty()) {
    char c = line.front();
    line.remove_prefix(1);
    if (c == '\\') {
      constexpr std::string_view kNames = "\\'\"nrt", kMeans = "\\'\"\n\r\t";
      const std::size_t which = line.empty() ? kNames.npos : kNames.find(line.front());
      std::uint32_t byte = 0;
      const bool hex = line.starts_with('x');
      if (!line.empty()) {
        line.remove_prefix(1);
      }
      if (which == kNames.npos && !(hex && take_hex(line, 2, byte))) {
        fail("invalid escape sequence");
      }
      c = which == kNames.npos ? static_cast<char>(byte) : kMeans[which];
    }
    text += c;
  }
  return std::string(utf8(text));
}

std::string utf8_of_latin1(std::string_view latin1) {
  std::string text;
  text.reserve(latin1.size() + latin1.size() / 2);
  for (const char c : latin1) {
    append_utf8(text, static_cast<unsigned char>(c));
  }
  return text;
}

bool latin1_of_utf8(std::string_view utf8, std::string& latin1) {
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto first = static_cast<unsigned char>(utf8[i]);
    if (first < 0x80) {
      latin1 += utf8[i];
      continue;
    }
    if (first > 0xc3 || i + 1 == utf8.size()) {
      return false;
    }
    latin1 += static_cast<char>((first & 3) << 6 | (static_cast<unsigned char>(utf8[++i]) & 0x3f));
  }
  return true;
}

}  // namespace acc::checkpoint::pickle
