// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::output {

/// Keeps the last lines of a stream of bytes. Of a line that was overwritten with "\r", such as a
/// progress bar, only the last version is kept. Lines are truncated to kLineLength.
class LastLines {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kLineLength = 1000;  ///< bytes

  void feed(std::string_view bytes);

  /// Returns the lines, oldest first, including an unfinished last line.
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  std::deque<std::string> complete_;
  std::string partial_;
};

}  // namespace acc::launcher::output
