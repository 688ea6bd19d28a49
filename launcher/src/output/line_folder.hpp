// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

namespace acc::launcher::output {

/// Merges equal lines that several ranks write within a short time into one line. The lines of each
/// rank keep their order. Lines of different ranks keep the order of their first arrival
/// approximately: lines that only one rank has written may be moved before an earlier shared line.
class LineFolder {
 public:
  using Time = std::chrono::steady_clock::time_point;

  static constexpr std::chrono::milliseconds kWindow{200};        ///< longest delay of a line
  static constexpr std::size_t kMaxLines = 1000;                  ///< limit of pending lines
  static constexpr std::size_t kMaxBytes = std::size_t{1} << 20;  ///< limit of their texts

  struct Line {
    std::set<int> ranks;  ///< the ranks that wrote it
    std::string text;
  };

  /// Adds or removes a running rank. A pending line waits for the same line of all running ranks.
  void join(int rank) { running_.insert(rank); }
  void leave(int rank) { running_.erase(rank); }

  /// Adds a line that `rank` wrote at time `now`.
  void add(int rank, std::string_view text, Time now);

  /// Removes and returns the first line if it is ready: all running ranks have written it, its
  /// window is over, or the limits are exceeded. Empty if it is not ready, or if there is none.
  std::optional<Line> take(Time now);

  /// Returns the time at which the first pending line becomes ready at the latest.
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
  /// Hashes of the pending texts: avoids a search for most lines, which equal no other line.
  std::unordered_multiset<std::size_t> hashes_;
  std::size_t bytes_ = 0;  ///< total size of the pending texts
};

}  // namespace acc::launcher::output
