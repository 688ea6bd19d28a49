#include "supervision/guardian.hpp"

#include "acc/base/error.hpp"
#include "supervision/descendants.hpp"
#include "supervision/descriptors.hpp"
#include "supervision/process_end.hpp"
#include "supervision/signals.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

namespace acc::launcher {
namespace {

constexpr const char* kSupervisorName = "acc-supervisor";

Error failed(const char* what) {
  return {Errc::process, std::string(what) + " failed: " + std::strerror(errno)};
}

/// Writes `title` over the strings of argv, where ps and `pkill -f` look.
void retitle(int argc, char** argv, std::string_view title) {
  char* const begin = argv[0];
  char* const end = argv[argc - 1] + std::strlen(argv[argc - 1]);
  std::fill(begin, end, '\0');
  std::copy_n(title.begin(), std::min(title.size(), static_cast<std::size_t>(end - begin)), begin);
}

[[noreturn]] void become_supervisor(int argc, char** argv, UniqueFd guardian,
                                    const std::function<int(UniqueFd)>& body) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_NAME, kSupervisorName);
  std::signal(SIGPIPE, SIG_IGN);
  retitle(argc, argv, kSupervisorName);
  std::exit(body(std::move(guardian)));
}

/// Reaps all that has ended; the wait status of `supervisor` goes to `wait_status`.
bool supervisor_ended(pid_t supervisor, int& wait_status) {
  bool ended = false;
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == supervisor) {
      wait_status = status;
      ended = true;
    }
  }
  return ended;
}

int wait_and_forward(pid_t supervisor, const sigset_t& signals) {
  for (int wait_status = 0;;) {
    const int signal = ::sigwaitinfo(&signals, nullptr);
    if (signal == SIGCHLD) {
      if (supervisor_ended(supervisor, wait_status)) {
        return wait_status;
      }
    } else if (signal > 0 && !is_own_signal(signal)) {
      ::kill(supervisor, signal);
      if (signal == SIGTSTP) {
        ::raise(SIGSTOP);  // the shell looks at this process; SIGCONT is passed on like any other
      }
    }
  }
}

void remove_what_is_left(int supervisor) {
  std::array<char, PATH_MAX> folder{};
  if (::recv(supervisor, folder.data(), folder.size() - 1, MSG_DONTWAIT) > 0) {
    std::error_code ignored;
    std::filesystem::remove_all(folder.data(), ignored);
  }
}

}  // namespace

void leave_to_guardian(int guardian, const std::string& folder) {
  if (folder.size() < PATH_MAX) {
    ::send(guardian, folder.data(), folder.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
}

int run_guarded(int argc, char** argv, const std::function<int(UniqueFd)>& body) {
  fill_standard_streams();
  const sigset_t signals = handled_signals();
  std::signal(SIGCHLD, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // The supervisor sees the end of this stream when the guardian is gone, in whatever way.
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw failed("socketpair");
  }
  UniqueFd watched(ends[0]);
  UniqueFd held(ends[1]);
  const pid_t supervisor = ::fork();
  if (supervisor < 0) {
    throw failed("fork");
  }
  if (supervisor == 0) {
    held.reset();
    become_supervisor(argc, argv, std::move(watched), body);
  }
  watched.reset();
  const ProcessEnd end = ProcessEnd::from_wait_status(wait_and_forward(supervisor, signals));
  if (!end_descendants()) {
    std::fprintf(stderr, "acclaunch: some processes of the job could not be killed\n");
  }
  remove_what_is_left(held.get());
  if (end.kind == ProcessEnd::Kind::killed) {
    std::fprintf(stderr, "acclaunch: its supervisor (pid %d) was %s; the workers were ended\n",
                 static_cast<int>(supervisor), end.describe().c_str());
  }
  return end.shell_status();
}

}  // namespace acc::launcher
