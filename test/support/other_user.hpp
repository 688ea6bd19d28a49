// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <doctest/doctest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <functional>
#include <utility>

namespace acc::test {

inline constexpr uid_t kNobody = 65534;

/// A process of another user; only root can make one. work: may only make system calls if this
/// process has several threads; returns the exit status.
class OtherUser {
 public:
  explicit OtherUser(const std::function<int(int ready)>& work) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    ready_.reset(ends[0]);
    const UniqueFd ready(ends[1]);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::_exit(::setgid(kNobody) == 0 && ::setuid(kNobody) == 0 ? work(ready.get()) : 99);
    }
  }
  OtherUser(const OtherUser&) = delete;
  OtherUser& operator=(const OtherUser&) = delete;
  ~OtherUser() { end(); }

  void await_ready() const {
    char byte = 0;
    REQUIRE(::read(ready_.get(), &byte, 1) == 1);
  }
  int end() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      wait();
    }
    return status_;
  }
  int wait() {
    ::waitpid(std::exchange(pid_, 0), &status_, 0);
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
  }

 private:
  pid_t pid_ = 0;
  int status_ = 0;
  UniqueFd ready_;
};

}  // namespace acc::test
