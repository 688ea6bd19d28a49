#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// Keeps the last lines of a stream of bytes. A line that overwrote itself with "\r" counts as it
/// was seen last; long ones are cut.
class LastLines {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kLineLength = 1000;  ///< bytes

  void feed(std::string_view bytes);

  /// Oldest first, the unfinished last line included.
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  std::deque<std::string> complete_;
  std::string partial_;
};

}  // namespace acc::launcher
