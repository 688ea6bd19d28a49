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

/// How long a test waits for something that has to happen. Never a measure of speed.
inline constexpr std::chrono::seconds kDeadline{30};

/// A program under test: its output is read all along, its end is awaited. Throws
/// std::runtime_error, with the output so far, when what is waited for does not happen in time.
class Program {
 public:
  explicit Program(std::vector<std::string> command,
                   const std::map<std::string, std::string>& variables = {});
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program();  ///< kills it, if it still runs

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  void signal(int signal) const;

  /// Returns when `text` has been written `count` times, to stdout and stderr together.
  void wait_for_text(std::string_view text, int count = 1);

  /// Returns the exit status as a shell gives it, when the program has ended.
  int wait();

  [[nodiscard]] const std::string& out() const noexcept { return streams_[0].text; }
  [[nodiscard]] const std::string& err() const noexcept { return streams_[1].text; }

 private:
  struct Stream {
    UniqueFd pipe;
    std::string text;
    void read_available();
  };

  /// Reads what is there; the answer is older than that.
  bool has_ended();
  [[nodiscard]] std::runtime_error failure(const std::string& what) const;
  void wait_for_event(std::chrono::steady_clock::time_point deadline, std::string_view what);

  pid_t pid_ = -1;
  UniqueFd end_;  // pidfd
  bool reaped_ = false;
  Stream streams_[2];
};

/// Some processes whose end is awaited, whoever their parent is.
class Watched {
 public:
  /// Takes the numbers that follow `mark` in `text`.
  Watched(std::string_view text, std::string_view mark);
  Watched() = default;

  [[nodiscard]] std::size_t size() const noexcept { return pids_.size(); }
  [[nodiscard]] pid_t operator[](std::size_t index) const { return pids_[index]; }
  void add(pid_t pid);
  /// Returns true as soon as all have ended; false after the deadline.
  [[nodiscard]] bool all_end() const;

 private:
  std::vector<pid_t> pids_;
  std::vector<UniqueFd> ends_;
};

/// A TCP port that nobody else gets while this lives, and that a server may listen on.
class ReservedPort {
 public:
  ReservedPort();
  [[nodiscard]] std::string text() const { return std::to_string(port_); }
  /// Takes connections, and never answers.
  void listen() const;
  /// Whether somebody else listens there.
  [[nodiscard]] bool has_listener() const;

 private:
  UniqueFd socket_;
  int port_ = 0;
};

}  // namespace acc::test
