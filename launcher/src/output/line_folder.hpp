#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace acc::launcher {

/// Makes one line of those that several ranks write alike within a short time. Lines go out in the
/// order in which they came first, and each rank's own lines in the order in which it wrote them.
class LineFolder {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr std::chrono::milliseconds kWindow{200};
  static constexpr std::size_t kMaxLines = 1000;  ///< that wait for other ranks
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 20;

  struct Line {
    std::set<int> ranks;
    std::string text;
  };

  /// A rank that a line may be waited for from, until it leaves.
  void join(int rank) { running_.insert(rank); }
  void leave(int rank) { running_.erase(rank); }

  void add(int rank, std::string_view text, Time now);

  /// The next line that all running ranks have written, whose time is over, or that there is no
  /// room for any more.
  std::optional<Line> take(Time now);

  /// When the next line goes out at the latest.
  [[nodiscard]] std::optional<Time> due() const;

 private:
  struct Pending {
    Line line;
    Time due;
  };

  [[nodiscard]] bool is_ready(const Pending& pending, Time now) const;

  std::set<int> running_;
  std::deque<Pending> pending_;
  std::size_t first_ = 0;  ///< number of pending_.front(); numbers count all lines
  std::size_t bytes_ = 0;  ///< of the texts in pending_
  std::unordered_map<std::string, std::set<std::size_t>> by_text_;  ///< numbers, of those pending
  std::unordered_map<int, std::size_t> next_;  ///< by rank: the number after that of its last line
};

}  // namespace acc::launcher
