#include "report/plain_text.hpp"

#include <boost/locale/utf.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace acc::launcher {
namespace {

namespace utf = boost::locale::utf;

/// C0 with DEL, and C1, in which terminals have escape sequences too.
bool is_control(utf::code_point point) {
  return (point < 0x20 && point != '\t' && point != '\n') || (point >= 0x7f && point < 0xa0);
}

}  // namespace

std::string clipped(std::string_view text, std::size_t max_bytes) {
  constexpr std::string_view kMark = "...";
  if (text.size() <= max_bytes) {
    return std::string(text);
  }
  std::size_t end = max_bytes - std::min(max_bytes, kMark.size());
  while (end > 0 && utf::utf_traits<char>::is_trail(text[end])) {
    --end;
  }
  return std::string(text.substr(0, end)).append(kMark.substr(0, max_bytes));
}

std::string harmless(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char* at = text.begin(); at != text.end();) {
    const char* const begin = at;
    const utf::code_point point = utf::utf_traits<char>::decode(at, text.end());
    if (utf::is_valid_codepoint(point) && !is_control(point)) {
      out.append(begin, at);
      continue;
    }
    at = utf::is_valid_codepoint(point) ? at : begin + 1;
    for (const char* byte = begin; byte != at; ++byte) {
      fmt::format_to(std::back_inserter(out), "\\x{:02x}", static_cast<unsigned char>(*byte));
    }
  }
  return out;
}

}  // namespace acc::launcher
