#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// Makes one line of those that several ranks write alike within a short time. Each rank's own
/// lines go out in the order in which it wrote them; those of different ranks in about the order in
/// which they came first: a line that one rank alone has written gives way to one that several
/// share.
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

  using Lines = std::list<Pending>;

  [[nodiscard]] bool is_ready(const Pending& pending, Time now) const;
  Lines::iterator find_same(int rank, std::string_view text);
  void move_lines_of(int rank, Lines::iterator same);

  std::set<int> running_;
  Lines pending_;
  std::size_t bytes_ = 0;  ///< of the texts in pending_
};

}  // namespace acc::launcher
