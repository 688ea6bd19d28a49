#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// Cuts one stream of bytes into lines and puts a prefix before each, so that the lines of several
/// streams can share an output. A line ends at "\n", or at a lone "\r" (progress bars). Any other
/// byte passes unchanged. With an empty prefix bytes pass through as they come.
class LineAssembler {
 public:
  /// A longer line is broken with "\n", so that memory is bounded.
  static constexpr std::size_t kMaxLine = std::size_t{1} << 20;

  explicit LineAssembler(std::string prefix) : prefix_(std::move(prefix)) {}

  /// Appends the lines that `bytes` completes to `out`.
  void feed(std::string_view bytes, std::string& out);

  /// The end of the stream: appends what is left, with "\n" added.
  void finish(std::string& out);

 private:
  void emit(std::string_view end_of_line, std::string& out);

  std::string prefix_;
  std::string partial_;
};

/// Keeps the last lines of a stream of bytes. A line that overwrote itself with "\r" counts as it
/// was seen last; long ones are cut.
class LastLines {
 public:
  static constexpr std::size_t kLines = 20;
  static constexpr std::size_t kLineLength = 1000;

  void feed(std::string_view bytes);

  /// Oldest first, the unfinished last line included.
  [[nodiscard]] std::vector<std::string> lines() const;

 private:
  std::deque<std::string> complete_;
  std::string partial_;
};

}  // namespace acc::launcher
