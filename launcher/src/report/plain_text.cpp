#include "report/plain_text.hpp"

#include <boost/locale/utf.hpp>

#include <algorithm>

namespace acc::launcher {

namespace utf = boost::locale::utf;

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

}  // namespace acc::launcher
