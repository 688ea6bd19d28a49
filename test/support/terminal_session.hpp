// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "support/program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace acc::test {

/// A program that leads a session on its own pseudo-terminal, like a user's shell. Throws
/// std::runtime_error, with the contents of the terminal, if an awaited event does not happen.
class TerminalSession {
 public:
  explicit TerminalSession(const std::vector<std::string>& command) {
    int terminal = -1;
    pid_ = ::forkpty(&terminal, nullptr, nullptr, nullptr);
    if (pid_ < 0) {
      throw std::runtime_error("forkpty failed");
    }
    if (pid_ == 0) {
      ::setenv("TERM", "xterm", 1);
      std::vector<char*> words;
      for (const std::string& word : command) {
        words.push_back(const_cast<char*>(word.c_str()));
      }
      words.push_back(nullptr);
      ::execvp(words.front(), words.data());
      ::_exit(127);
    }
    ::fcntl(terminal, F_SETFD, FD_CLOEXEC);
    terminal_.reset(terminal);
  }
  TerminalSession(const TerminalSession&) = delete;
  TerminalSession& operator=(const TerminalSession&) = delete;
  ~TerminalSession() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }

  /// Sends `keys` as if a user typed them.
  void type(std::string_view keys) const {
    if (::write(terminal_.get(), keys.data(), keys.size()) != static_cast<ssize_t>(keys.size())) {
      throw std::runtime_error("cannot write to the terminal");
    }
  }

  /// Waits for `text`. Returns the output since the last call, up to the end of `text`.
  std::string wait_for(std::string_view text) {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    std::size_t at = 0;
    while ((at = bytes_.find(text, seen_)) == std::string::npos) {
      if (!read_some(deadline)) {
        throw std::runtime_error("timeout while waiting for '" + std::string(text) +
                                 "'; the terminal:\n" + bytes_);
      }
    }
    const std::string part = bytes_.substr(seen_, at + text.size() - seen_);
    seen_ = at + text.size();
    return part;
  }

  /// Waits until no process has the terminal open. Returns the wait status of the program.
  int wait() {
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    while (read_some(deadline)) {
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw std::runtime_error("timeout while waiting for the end; the terminal:\n" + bytes_);
    }
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

  void signal(int signal) const { ::kill(pid_, signal); }

  /// Hangs up the terminal, as if the user had closed it.
  void hang_up() { terminal_.reset(); }

  [[nodiscard]] const std::string& bytes() const noexcept { return bytes_; }

 private:
  /// Reads some output. Returns false after the deadline, or if no process has the terminal open.
  bool read_some(std::chrono::steady_clock::time_point deadline) {
    pollfd ready{terminal_.get(), POLLIN, 0};
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    std::array<char, 4096> chunk{};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) != 1) {
      return false;
    }
    const ssize_t count = ::read(terminal_.get(), chunk.data(), chunk.size());
    bytes_.append(chunk.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
    return count > 0;
  }

  pid_t pid_ = -1;
  UniqueFd terminal_;
  std::string bytes_;
  std::size_t seen_ = 0;  ///< where the next `wait_for` begins
};

}  // namespace acc::test
