// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace acc::launcher::output {

/// State of the job on this machine, for the status line.
struct JobStatus {
  int running = 0;  ///< workers that have not ended
  int workers = 0;  ///< all workers
  int restarts = 0;
  std::chrono::steady_clock::time_point started_at;
};

/// Returns the text of the status line: "acclaunch: 8 of 8 workers, 1 restart, 2:03:17". The last
/// part is the time since the start.
std::string status_text(const JobStatus& status, std::chrono::steady_clock::time_point now);

/// A line that stays at the bottom of a terminal while other output scrolls. It is erased before
/// each block of output and drawn again after it.
class StatusLine {
 public:
  /// Sets the text, which is drawn by the next `around`. Empty: no status line.
  void set(std::string text) { text_ = std::move(text); }

  /// Returns the bytes to write for `block`, which may be empty: they erase the status line, and
  /// draw it again after the block. After an unfinished line, such as a progress bar, it is not
  /// drawn.
  std::string around(std::string_view block);

 private:
  std::string text_;
  std::string shown_;  ///< the text that is on the terminal; empty: none
  bool at_line_start_ = true;
};

}  // namespace acc::launcher::output
