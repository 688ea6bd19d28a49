#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace acc::launcher {

/// What the status line tells of this machine's part of a job.
struct JobStatus {
  int running = 0;  ///< workers that have not ended
  int workers = 0;
  int restarts = 0;
  std::chrono::steady_clock::time_point started_at;
};

/// "acclaunch: 8 of 8 workers, 1 restart, 2:03:17": the last is the time since the start.
std::string status_text(const JobStatus& status, std::chrono::steady_clock::time_point now);

/// The last line of a terminal that other output scrolls by. Turns blocks of output into what has
/// to be written so that the line is erased before them and stands below them again.
class StatusLine {
 public:
  /// Empty: none. Shows with the next `around`.
  void set(std::string text) { text_ = std::move(text); }

  /// `block`, which may be empty, with the line erased before it and drawn after it. Behind an
  /// unfinished line, such as a progress bar, it is not drawn.
  std::string around(std::string_view block);

 private:
  std::string text_;
  std::string shown_;  ///< what stands below the output; empty: nothing
  bool at_line_start_ = true;
};

}  // namespace acc::launcher
