// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <sys/types.h>

#include <chrono>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace acc::test {

/// Time limit for events that must happen. It is not used to measure speed.
inline constexpr std::chrono::seconds kDeadline{120};

/// A program under test. Reads its output continuously and waits for its end. Throws
/// std::runtime_error, with the output so far, if an awaited event does not happen in time.
class Program {
 public:
  explicit Program(std::vector<std::string> command,
                   const std::map<std::string, std::string>& variables = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();  ///< kills the program if it still runs

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  void signal(int signal) const;

  /// Number of times that `text` is in the lines that were read so far, of stdout and stderr
  /// together. A line whose end has not come yet does not count: its rest may be what a test reads.
  [[nodiscard]] int count(std::string_view text) const;

  /// Returns when `count(text)` has come to `times`.
  void wait_for_text(std::string_view text, int times = 1);

  /// Waits until the program has ended. Returns the exit status as a shell reports it.
  int wait();

  [[nodiscard]] const std::string& out() const noexcept { return streams_[0].text; }
  [[nodiscard]] const std::string& err() const noexcept { return streams_[1].text; }

 private:
  struct Stream {
    UniqueFd pipe;
    std::string text;
    void read_available();
  };

  /// True if the program had ended before this call read its available output.
  bool has_ended();
  [[nodiscard]] std::runtime_error failure(const std::string& what) const;
  void wait_for_event(std::chrono::steady_clock::time_point deadline, std::string_view what);

  pid_t pid_ = -1;
  UniqueFd end_;  // pidfd
  bool reaped_ = false;
  Stream streams_[2];
};

/// Processes whose end a test awaits. They need not be children of the test.
class Watched {
 public:
  /// Watches the process IDs that follow `mark` in `text`.
  Watched(std::string_view text, std::string_view mark);
  Watched() = default;

  [[nodiscard]] std::size_t size() const noexcept { return pids_.size(); }
  [[nodiscard]] pid_t operator[](std::size_t index) const { return pids_[index]; }
  void add(pid_t pid);
  /// Returns true when all have ended, or false after the deadline.
  [[nodiscard]] bool all_end() const;

 private:
  std::vector<pid_t> pids_;
  std::vector<UniqueFd> ends_;
};

/// A TCP port that no other process gets during the lifetime of this object. A server may listen on
/// it (SO_REUSEADDR).
class ReservedPort {
 public:
  ReservedPort();
  [[nodiscard]] std::string text() const { return std::to_string(port_); }
  /// Accepts connections, and never replies.
  void listen() const;
  /// True if a process listens on the port.
  [[nodiscard]] bool has_listener() const;

 private:
  UniqueFd socket_;
  int port_ = 0;
};

}  // namespace acc::test
