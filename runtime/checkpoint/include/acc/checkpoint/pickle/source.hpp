// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace acc::checkpoint::pickle {

/// True if all of the text is valid UTF-8.
bool is_utf8(std::string_view text);

/// Cursor over the bytes of a pickle: reads opcodes and their arguments. Every function throws
/// Error(config) with the place and the cause if the bytes end too early or have no valid meaning.
class Source {
 public:
  Source(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(reinterpret_cast<const char*>(bytes.data()), bytes.size()), where_(where) {}

  /// Returns the next opcode. Faults from here on are reported at its byte.
  unsigned char opcode();
  /// Returns a little-endian unsigned integer of 1, 2, 4 or 8 bytes.
  std::uint64_t unsigned_of(std::size_t nbytes);
  double big_endian_double();
  /// Returns the next `nbytes` bytes.
  std::string_view take(std::uint64_t nbytes);
  /// Returns the bytes up to the next newline, which is skipped.
  std::string_view line();
  /// Parses a decimal number that fills the whole line.
  std::int64_t decimal(std::string_view line) const;
  double decimal_real(std::string_view line) const;
  /// Little-endian two's complement of any length (LONG1, LONG4).
  std::int64_t long_of(std::string_view bytes) const;
  /// Returns the same text if it is valid UTF-8. Surrogates pass, as with Python's surrogatepass.
  std::string_view utf8(std::string_view text) const;
  /// Decodes Python's raw-unicode-escape (opcode UNICODE) and quoted form (STRING) to UTF-8.
  std::string unescaped_unicode(std::string_view line) const;
  std::string unquoted(std::string_view line) const;

  [[nodiscard]] std::size_t position() const noexcept { return next_; }
  [[nodiscard]] std::size_t nbytes() const noexcept { return bytes_.size(); }
  [[noreturn]] void fail(const std::string& what) const;
  /// Throws Unreadable in the same form.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  std::string_view bytes_;
  const std::string& where_;
  std::size_t next_ = 0;
  std::size_t opcode_at_ = 0;
};

/// Converts bytes in Latin-1 (each byte is a code point) to UTF-8, and back. The second function
/// returns false if a code point is above 255.
std::string utf8_of_latin1(std::string_view latin1);
bool latin1_of_utf8(std::string_view utf8, std::string& latin1);

}  // namespace acc::checkpoint::pickle
