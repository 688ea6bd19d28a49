#include "supervision/guardian.hpp"

#include "acc/base/error.hpp"
#include "supervision/kernel_file.hpp"
#include "supervision/process_end.hpp"
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
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace acc::launcher {
namespace {

using Body = std::function<int(Guard)>;

/// Where ps and `pkill -f` look: the strings of argv.
struct Title {
  char* begin;
  char* end;

  Title(int argc, char** argv)
      : begin(argv[0]), end(argv[argc - 1] + std::strlen(argv[argc - 1])) {}

  /// Names the process too.
  void set(const char* name) const noexcept {
    ::prctl(PR_SET_NAME, name);
    std::fill(begin, end, '\0');
    std::copy_n(name, std::min(std::strlen(name), static_cast<std::size_t>(end - begin)), begin);
  }
};

/// Opens /dev/null in the place of a missing stdin, stdout or stderr, so that nothing else gets its
/// number.
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

/// Other pid namespaces below the same control group count the same numbers.
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

/// Unmaps the pages of the program's and its libraries' text, which come back by themselves where
/// they are run again: 4 of the 6 MB of a process that only waits from now on.
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

/// Reaps all that has ended; the wait status of `child` goes to `wait_status`.
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

/// Waits for the end of `child`, and passes signals on to it. `on_signal` is called with each, and
/// with SIGCHLD while it has not ended.
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
        ::kill(child, SIGCONT);  // a stopped one would not see it
      }
      on_signal(signal);
    }
  }
}

/// The mode of the terminal as the guardian found it, if its process group had the terminal.
class TerminalMode {
 public:
  TerminalMode() : terminal_(::open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC)) {
    if (termios mode{}; is_foreground() && ::tcgetattr(terminal_.get(), &mode) == 0) {
      mode_ = mode;
    }
  }

  /// Sets it again, if the group still has the terminal.
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

/// By itself: in what the user reads before something runs, or at the end of a job that was
/// interrupted. SIGINT from outside is passed on.
bool died_of_interrupt(const ProcessEnd& end) {
  return end.kind == ProcessEnd::Kind::killed && end.value == SIGINT;
}

/// All that is left of the job is that of a child which could not end by itself.
int clean_up_after(const char* name, pid_t pid, const ProcessEnd& end, Remains& remains) {
  if (!remains.clean_up()) {
    std::fprintf(stderr, "acclaunch: some processes of the job could not be killed\n");
  }
  if (end.kind == ProcessEnd::Kind::killed && !died_of_interrupt(end)) {
    std::fprintf(stderr, "acclaunch: its %s (pid %d) was %s; the workers were ended\n", name,
                 static_cast<int>(pid), end.describe().c_str());
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
                                Remains remains, const JobControl& job_control,
                                const Body& body) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_PDEATHSIG, SIGCONT);  // a stopped keeper sees it too, and passes it on
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw failed("socketpair");
  }
  UniqueFd watched(ends[0]);
  UniqueFd held(ends[1]);  // the supervisor sees its end, in whatever way it comes
  const pid_t supervisor = forked();
  if (supervisor == 0) {
    held.reset();
    become_supervisor(title, {std::move(watched), std::move(remains), job_control, 0}, body);
  }
  watched.reset();
  ::setsid();  // not before: the workers stay in the terminal's session
  title.set("acc-keeper");
  const auto look_after_guardian = [&](int) {
    if (::getppid() != guardian) {
      held.reset();
    }
  };
  look_after_guardian(SIGCONT);
  const ProcessEnd end = await(supervisor, signals, look_after_guardian);
  const int status = clean_up_after("supervisor", supervisor, end, remains);
  if (died_of_interrupt(end)) {
    die_of_interrupt();
  }
  ::_exit(status);
}

}  // namespace

int run_guarded(int argc, char** argv, const Body& body) {
  fill_standard_streams();
  const sigset_t signals = handled_signals();
  std::signal(SIGCHLD, SIG_DFL);
  ::sigprocmask(SIG_SETMASK, &signals, nullptr);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t guardian = ::getpid();
  Remains remains(control_group_name(guardian));
  const JobControl job_control;
  const pid_t keeper = forked();
  if (keeper == 0) {
    become_keeper(Title(argc, argv), guardian, signals, std::move(remains), job_control, body);
  }
  const TerminalMode terminal;
  give_back_text();
  const ProcessEnd end = await(keeper, signals, [&](int signal) {
    if (job_control.is_led()) {  // when it goes on, the worker may have ended
      job_control.follow_worker();
    } else if (signal == SIGTSTP) {
      const timespec moment{0, 10'000'000};  // the status line goes before the shell's prompt
      ::nanosleep(&moment, nullptr);
      // Without a terminal the group may be an orphaned one, in which SIGTSTP stops nobody.
      const int stop = job_control.group() != 0 ? SIGTSTP : SIGSTOP;
      if (!JobControl::stop_self(stop)) {  // else SIGCONT is passed on like any other
        ::kill(keeper, SIGCONT);
      }
    }
  });
  const int status = end.kind == ProcessEnd::Kind::killed
                         ? clean_up_after("keeper", keeper, end, remains)
                         : end.shell_status();
  if (status != 0) {
    terminal.restore();
  }
  if (died_of_interrupt(end)) {
    die_of_interrupt();
  }
  return status;
}

}  // namespace acc::launcher
