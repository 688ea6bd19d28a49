// SPDX-License-Identifier: Apache-2.0
#include "supervision/guardian.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "supervision/process_end.hpp"
#include "supervision/process_state.hpp"
#include "supervision/signals.hpp"

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace acc::launcher::supervision {
namespace {

using Body = std::function<int(Guard)>;

/// The process title, which ps and `pkill -f` read: the memory of the argv strings, which the
/// kernel places one after the other.
struct Title {
  char* begin;
  char* end;

  Title(int argc, char** argv)
      : begin(argv[0]), end(argv[argc - 1] + std::strlen(argv[argc - 1])) {}

  /// Sets the title, and the process name (PR_SET_NAME, at most 15 bytes).
  void set(const char* name) const noexcept {
    ::prctl(PR_SET_NAME, name);
    std::fill(begin, end, '\0');
    std::copy_n(name, std::min(std::strlen(name), static_cast<std::size_t>(end - begin)), begin);
  }
};

/// Opens /dev/null in place of a closed stdin, stdout or stderr, so that no other file gets its
/// descriptor number.
void fill_standard_streams() noexcept {
  int fd = 0;
  while ((fd = ::open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) {
  }
  if (fd > STDERR_FILENO) {
    ::close(fd);
  }
}

Error failed(const char* what) {
  return {Errc::process, std::string(what) + " failed: " + std::strerror(errno)};
}

/// Returns a name that is unique below the launcher's own group. Containers that share that group
/// have separate pid namespaces, in which the same pid occurs, so the name includes the namespace.
std::string control_group_name(pid_t guardian) {
  const std::int64_t space = pid_namespace().value_or(kFirstPidNamespace);
  return "acclaunch-" + std::to_string(guardian) +
         (space == kFirstPidNamespace ? "" : "." + std::to_string(space));
}

pid_t forked() {
  const pid_t pid = ::fork();
  if (pid < 0) {
    throw failed("fork");
  }
  return pid;
}

/// Unmaps the code pages of the program and its libraries. The kernel maps a page again when it is
/// executed. This saves 4 of the 6 MB of a process that only waits from now on.
void give_back_text() noexcept {
  ::dl_iterate_phdr(
      [](dl_phdr_info* object, std::size_t, void*) {
        for (const ElfW(Phdr) & part : std::span(object->dlpi_phdr, object->dlpi_phnum)) {
          if (part.p_type == PT_LOAD && (part.p_flags & PF_X) != 0) {
            const auto page = static_cast<ElfW(Addr)>(::sysconf(_SC_PAGESIZE));
            const ElfW(Addr) begin = (object->dlpi_addr + part.p_vaddr) / page * page;
            const ElfW(Addr) end = object->dlpi_addr + part.p_vaddr + part.p_filesz;
            ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
          }
        }
        return 0;
      },
      nullptr);
}

/// Reaps all children that have ended. True if `child` was one of them; stores its `wait_status`.
bool has_ended(pid_t child, int& wait_status) {
  bool ended = false;
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid == child) {
      wait_status = status;
      ended = true;
    }
  }
  return ended;
}

/// Waits for the end of `child` and passes signals on to it. Calls `on_signal` with each signal
/// that was passed on, and with SIGCHLD unless it reported the end of `child`.
template <typename OnSignal>
ProcessEnd await(pid_t child, const sigset_t& signals, OnSignal on_signal) {
  for (int wait_status = 0;;) {
    siginfo_t info{};
    const int signal = ::sigwaitinfo(&signals, &info);
    if (signal == SIGCHLD) {
      if (has_ended(child, wait_status)) {
        return ProcessEnd::from_wait_status(wait_status);
      }
      on_signal(signal);
    } else if (signal > 0 && !is_own_signal(signal)) {
      PassedSignal::received(signal, info.si_code, info.si_value.sival_int).pass_on(child);
      if (is_stop_signal(signal)) {
        ::kill(child, SIGCONT);  // a stopped process would not handle the signal
      }
      on_signal(signal);
    }
  }
}

/// The terminal's mode when the guardian started, if its process group was in the foreground. A
/// worker that is killed in a password prompt or a debugger would leave echo switched off.
class TerminalMode {
 public:
  TerminalMode() : terminal_(::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC)) {
    if (termios mode{}; is_foreground() && ::tcgetattr(terminal_.get(), &mode) == 0) {
      mode_ = mode;
    }
  }

  /// Restores the mode, if the group is still in the foreground.
  void restore() const noexcept {
    if (mode_ && is_foreground()) {
      ::tcsetattr(terminal_.get(), TCSANOW, &*mode_);
    }
  }

 private:
  [[nodiscard]] bool is_foreground() const noexcept {
    return terminal_ && ::tcgetpgrp(terminal_.get()) == ::getpgrp();
  }

  UniqueFd terminal_;
  std::optional<termios> mode_;
};

/// True if the process ended itself by SIGINT: while it printed text before the job started, or
/// after a job that was interrupted. A SIGINT from outside is passed on and does not kill it.
bool died_of_interrupt(const ProcessEnd& end) {
  return end.kind == ProcessEnd::Kind::killed && end.value == SIGINT;
}

/// Cleans up after `pid`, the keeper or the supervisor, and returns the exit status for the shell.
/// Leftovers exist only if that process was killed before it could clean up itself.
int clean_up_after(const char* name, pid_t pid, const ProcessEnd& end, Leftovers& leftovers) {
  if (!leftovers.clean_up()) {
    notice(Component::launcher, LogLevel::err,
           "acclaunch: ", "some processes of the job could not be killed");
  }
  if (end.kind == ProcessEnd::Kind::killed && !died_of_interrupt(end)) {
    notice(Component::launcher, LogLevel::critical, "acclaunch: ",
           "its " + std::string(name) + " process (pid " + std::to_string(pid) + ") was " +
               end.describe() + "; all workers were killed");
  }
  return end.shell_status();
}

[[noreturn]] void become_supervisor(const Title& title, Guard guard, const Body& body) {
  guard.process_group = ::getpgrp();
  ::setpgid(0, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::signal(SIGPIPE, SIG_IGN);
  title.set("acc-supervisor");
  std::exit(body(std::move(guard)));
}

[[noreturn]] void become_keeper(const Title& title, pid_t guardian, const sigset_t& signals,
                                Leftovers leftovers, const JobControl& job_control,
                                const Body& body) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  // SIGCONT tells the keeper that the guardian died, even if the keeper is stopped. `await` passes
  // it on to the supervisor.
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw failed("socketpair");
  }
  UniqueFd watched(ends[0]);
  UniqueFd held(ends[1]);  // closed by the kernel however the keeper ends; the supervisor sees EOF
  const pid_t supervisor = forked();
  if (supervisor == 0) {
    held.reset();
    become_supervisor(title, {std::move(watched), std::move(leftovers), job_control, 0}, body);
  }
  watched.reset();
  ::setsid();  // after the fork, so that the supervisor and workers stay in the terminal's session
  title.set("acc-keeper");
  const auto look_after_guardian = [&](int) {
    if (::getppid() != guardian) {
      held.reset();
    }
  };
  look_after_guardian(SIGCONT);  // the guardian may have died before PR_SET_PDEATHSIG
  const ProcessEnd end = await(supervisor, signals, look_after_guardian);
  const int status = clean_up_after("supervisor", supervisor, end, leftovers);
  if (died_of_interrupt(end)) {
    die_of_interrupt();
  }
  ::_exit(status);
}

}  // namespace

int run_guarded(int argc, char** argv, const Body& body) {
  fill_standard_streams();
  const sigset_t signals = handled_signals();
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t guardian = ::getpid();
  Leftovers leftovers(control_group_name(guardian));
  const JobControl job_control;
  const pid_t keeper = forked();
  if (keeper == 0) {
    become_keeper(Title(argc, argv), guardian, signals, std::move(leftovers), job_control, body);
  }
  const TerminalMode terminal;
  give_back_text();
  const ProcessEnd end = await(keeper, signals, [&](int signal) {
    if (job_control.is_led()) {
      job_control.follow_worker();
    } else if (signal == SIGTSTP) {
      // The supervisor needs a moment to erase the status line before the shell prints its prompt.
      const timespec moment{0, 10'000'000};
      ::nanosleep(&moment, nullptr);
      // POSIX ignores SIGTSTP in an orphaned process group, which the group may be if there is no
      // terminal.
      const int stop = job_control.group() != 0 ? SIGTSTP : SIGSTOP;
      // When the guardian is continued, its SIGCONT is pending and is passed on by `await`. If it
      // could not stop, there is no SIGCONT, and the keeper and supervisor must be continued here.
      if (!JobControl::stop_self(stop)) {
        ::kill(keeper, SIGCONT);
      }
    }
  });
  const int status = end.kind == ProcessEnd::Kind::killed
                         ? clean_up_after("keeper", keeper, end, leftovers)
                         : end.shell_status();
  if (status != 0) {
    terminal.restore();
  }
  if (died_of_interrupt(end)) {
    die_of_interrupt();
  }
  return status;
}

}  // namespace acc::launcher::supervision
