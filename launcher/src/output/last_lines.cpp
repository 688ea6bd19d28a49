// SPDX-License-Identifier: Apache-2.0
#include "output/last_lines.hpp"

#include <algorithm>

namespace acc::launcher::output {
namespace {

/// Returns the part of a line that a terminal would show last: the text after the last "\r", except
/// those at the end ("\r\n").
std::string_view as_seen_last(std::string_view line) {
  while (line.ends_with('\r')) {
    line.remove_suffix(1);
  }
  return line.substr(line.rfind('\r') + 1);  // npos + 1 is 0
}

}  // namespace

void LastLines::feed(std::string_view bytes) {
  // Skips all but the last kLines + 1 lines, so that the cost of a large block is small.
  std::size_t begin = bytes.size();
  for (std::size_t count = 0; count <= kLines && begin != 0; ++count) {
    const std::size_t newline = bytes.rfind('\n', begin - 1);
    begin = newline == std::string_view::npos ? 0 : newline;
  }
  if (begin != 0) {
    complete_.clear();
    partial_.clear();
    bytes.remove_prefix(begin + 1);
  }
  for (std::size_t end = bytes.find('\n'); end != std::string_view::npos; end = bytes.find('\n')) {
    partial_.append(bytes.substr(0, end));
    complete_.emplace_back(as_seen_last(partial_).substr(0, kLineLength));
    partial_.clear();
    bytes.remove_prefix(end + 1);
  }
  partial_.append(bytes);
  // Bounds the memory for an unfinished line: drops overwritten versions first, then the end.
  if (const std::size_t cut = partial_.rfind('\r');
      partial_.size() > kLineLength && cut != std::string::npos && cut + 1 < partial_.size()) {
    partial_.erase(0, cut + 1);
  }
  partial_.resize(std::min(partial_.size(), 4 * kLineLength));
  while (complete_.size() > kLines) {
    complete_.pop_front();
  }
}

std::vector<std::string> LastLines::lines() const {
  std::vector<std::string> all(complete_.begin(), complete_.end());
  if (!partial_.empty()) {
    all.emplace_back(as_seen_last(partial_).substr(0, kLineLength));
  }
  if (all.size() > kLines) {
    all.erase(all.begin());
  }
  return all;
}

}  // namespace acc::launcher::output
