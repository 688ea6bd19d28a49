// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace acc::launcher::output {

/// Splits one stream of bytes into lines. A line ends with "\n", or with "\r" that is not followed
/// by "\n" (progress bars). All bytes are kept unchanged. A line that arrives in one piece is not
/// copied.
///
/// Memory is bounded: if the unfinished lines of all streams together exceed `kMaxHeld`, an
/// unfinished line that is longer than `kMinBroken` is ended with an additional "\n".
class LineAssembler {
 public:
  static constexpr std::size_t kMaxHeld = std::size_t{16} << 20;
  static constexpr std::size_t kMinBroken = std::size_t{64} << 10;

  /// `held`: number of bytes in the unfinished lines of all streams; shared by their assemblers.
  explicit LineAssembler(std::shared_ptr<std::size_t> held) : held_(std::move(held)) {}
  LineAssembler(LineAssembler&& other) noexcept  // the destructor of `other` uses its `held_`
      : held_(other.held_),                      // NOLINT(performance-move-constructor-init)
        partial_(std::exchange(other.partial_, {})) {}
  LineAssembler& operator=(LineAssembler&&) = delete;
  ~LineAssembler() { *held_ -= partial_.size(); }

  /// Calls `take` with each line that `bytes` completes, including its line end. The text is valid
  /// only during the call.
  template <typename Take>
  void feed(std::string_view bytes, const Take& take);

  /// Ends the stream: calls `take` with the unfinished line, if there is one, and "\n".
  template <typename Take>
  void finish(const Take& take);

  /// Returns the line that has no end yet.
  [[nodiscard]] std::string_view unfinished() const noexcept { return partial_; }

 private:
  class Scanner;

  template <typename Take>
  void take_partial(std::string_view end_of_line, const Take& take);
  void hold(std::string_view bytes);

  std::shared_ptr<std::size_t> held_;
  std::string partial_;
};

/// Iterates over the lines of a block. A "\r" at the end of the block does not end a line yet: the
/// next block may begin with the "\n" of "\r\n".
class LineAssembler::Scanner {
 public:
  explicit Scanner(std::string_view bytes) : bytes_(bytes), return_(bytes.find('\r')) {}

  /// Returns the next line with its line end; empty if no further line is complete.
  std::string_view next() {
    std::size_t end = bytes_.find('\n', begin_);
    while (return_ < end) {
      const std::size_t after = return_ + 1;
      const bool ends_line = after != end && after != bytes_.size();
      end = ends_line ? return_ : end;
      return_ = bytes_.find('\r', after);
    }
    if (end == std::string_view::npos) {
      return {};
    }
    const std::string_view line = bytes_.substr(begin_, end + 1 - begin_);
    begin_ = end + 1;
    return line;
  }

  [[nodiscard]] std::string_view rest() const { return bytes_.substr(begin_); }

 private:
  std::string_view bytes_;
  std::size_t begin_ = 0;
  std::size_t return_;  ///< position of the next "\r"
};

template <typename Take>
void LineAssembler::feed(std::string_view bytes, const Take& take) {
  // A "\r" at the end of the previous block ended a line if no "\n" follows.
  if (partial_.ends_with('\r') && !bytes.empty() && bytes.front() != '\n') {
    take_partial("", take);
  }
  Scanner lines(bytes);
  for (std::string_view line = lines.next(); !line.empty(); line = lines.next()) {
    if (partial_.empty()) {
      take(line);
    } else {
      take_partial(line, take);
    }
  }
  std::string_view rest = lines.rest();
  // Breaks the unfinished line, in parts as long as the limits allow.
  while (*held_ + rest.size() > kMaxHeld && partial_.size() + rest.size() > kMinBroken) {
    const std::size_t others = *held_ - partial_.size();
    const std::size_t allowed = std::max(kMinBroken, kMaxHeld - std::min(kMaxHeld, others));
    const std::size_t part = std::min(rest.size(), allowed - std::min(allowed, partial_.size()));
    hold(rest.substr(0, part));
    rest.remove_prefix(part);
    take_partial("\n", take);
  }
  hold(rest);
}

inline void LineAssembler::hold(std::string_view bytes) {
  partial_.append(bytes);
  *held_ += bytes.size();
}

template <typename Take>
void LineAssembler::finish(const Take& take) {
  if (!partial_.empty()) {
    take_partial("\n", take);
  }
}

template <typename Take>
void LineAssembler::take_partial(std::string_view end_of_line, const Take& take) {
  constexpr std::size_t kKept = std::size_t{4} << 10;
  *held_ -= partial_.size();
  partial_.append(end_of_line);
  take(std::string_view(partial_));
  partial_.clear();
  if (partial_.capacity() > kKept) {
    partial_.shrink_to_fit();
  }
}

}  // namespace acc::launcher::output
