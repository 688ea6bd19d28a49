// SPDX-License-Identifier: Apache-2.0
#include "spawn/reap.hpp"

#include "acc/base/unique_fd.hpp"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace acc::launcher::spawn {

std::optional<int> reap_within(pid_t pid, std::chrono::milliseconds limit) noexcept {
  using Clock = std::chrono::steady_clock;
  // Poll interval without pidfd_open(), and for a child that a debugger must wait for first.
  constexpr std::chrono::milliseconds kPause{5};
  const auto deadline = Clock::now() + limit;
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  for (bool has_ended = !pidfd;;) {
    int status = 0;
    const pid_t reaped = ::waitpid(pid, &status, WNOHANG);
    if (reaped == pid) {
      return status;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if ((reaped < 0 && errno != EINTR) || left.count() <= 0) {
      return std::nullopt;
    }
    pollfd end{.fd = has_ended ? -1 : pidfd.get(), .events = POLLIN, .revents = 0};
    has_ended |=
        ::poll(&end, 1, static_cast<int>((has_ended ? std::min(left, kPause) : left).count())) > 0;
  }
}

bool is_child(pid_t pid) noexcept {
  siginfo_t info{};
  return pid > 0 &&
         ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace acc::launcher::spawn
