#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace acc::checkpoint::pickle {

bool is_utf8(std::string_view text);

/// Takes a pickle's bytes apart: what follows an opcode. Everything throws Error(config) with place
/// and cause where the bytes end too early or say nothing sensible.
class Source {
 public:
  Source(std::span<const std::byte> bytes, const std::string& where)
      : bytes_(reinterpret_cast<const char*>(bytes.data()), bytes.size()), where_(where) {}

  /// The next opcode; faults are reported from here on at its byte.
  unsigned char opcode();
  /// Little-endian, of 1, 2, 4 or 8 bytes.
  std::uint64_t unsigned_of(std::size_t nbytes);
  double big_endian_double();
  std::string_view take(std::uint64_t nbytes);
  /// Up to the next newline, which is skipped.
  std::string_view line();
  /// A decimal number that is all of the line.
  std::int64_t decimal(std::string_view line) const;
  double decimal_real(std::string_view line) const;
  /// Little-endian two's complement (LONG1, LONG4).
  std::int64_t long_of(std::string_view bytes) const;
  /// The same text, if it is UTF-8 (as Python's surrogatepass has it).
  std::string_view utf8(std::string_view text) const;
  /// Python's raw-unicode-escape (UNICODE) and quoted form (STRING), as UTF-8.
  std::string unescaped_unicode(std::string_view line) const;
  std::string unquoted(std::string_view line) const;

  [[nodiscard]] std::size_t position() const noexcept { return next_; }
  [[nodiscard]] std::size_t nbytes() const noexcept { return bytes_.size(); }
  [[noreturn]] void fail(const std::string& what) const;

 private:
  std::string_view bytes_;
  const std::string& where_;
  std::size_t next_ = 0;
  std::size_t opcode_at_ = 0;
};

/// Bytes as Python's latin1: each a code point, as UTF-8; and back, nothing where one is above 255.
std::string utf8_of_latin1(std::string_view latin1);
bool latin1_of_utf8(std::string_view utf8, std::string& latin1);

}  // namespace acc::checkpoint::pickle
