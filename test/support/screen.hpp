// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace acc::test {

/// Returns the text that a terminal shows after it received `bytes`, without colours.
inline std::string shown(const std::string& bytes) {
  std::string done;
  std::string line;
  std::size_t column = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    if (bytes[at] == '\033') {
      const std::size_t end = bytes.find_first_of("mK", at);
      line.resize(bytes[end] == 'K' ? column : line.size());
      at = end;
    } else if (bytes[at] == '\n') {
      done += line + "\n";
      line.clear();
      column = 0;
    } else if (bytes[at] == '\r') {
      column = 0;
    } else {
      line.replace(column, 1, 1, bytes[at]);
      ++column;
    }
  }
  return done + line;
}

}  // namespace acc::test
