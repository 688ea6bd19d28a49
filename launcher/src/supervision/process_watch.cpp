// SPDX-License-Identifier: Apache-2.0
#include "supervision/process_watch.hpp"

#include "acc/base/error.hpp"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

namespace acc::launcher::supervision {

UniqueFd watch_end_of(pid_t child) {
  UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  if (pidfd) {
    return pidfd;
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(Errc::process, std::string("cannot create a pipe: ") + std::strerror(errno));
  }
  UniqueFd readable(ends[0]);
  // WNOWAIT leaves the exit status for the owner of the worker.
  std::thread([child, closes_at_end = UniqueFd(ends[1])] {
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) != 0 &&
           errno == EINTR) {
    }
  }).detach();
  return readable;
}

}  // namespace acc::launcher::supervision
