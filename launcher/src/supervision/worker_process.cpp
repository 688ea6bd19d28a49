// SPDX-License-Identifier: Apache-2.0
#include "supervision/worker_process.hpp"

#include "acc/base/error.hpp"
#include "spawn/child_launcher.hpp"
#include "spawn/create_child.hpp"
#include "supervision/descendants.hpp"
#include "supervision/fork_server.hpp"
#include "supervision/process_handle.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/process/v2/posix/default_launcher.hpp>
#include <boost/process/v2/start_dir.hpp>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstring>
#include <utility>

namespace acc::launcher::supervision {
namespace asio = boost::asio;
namespace process = boost::process::v2;

namespace {

/// Poll interval for a worker that has ended while a debugger traces it. The debugger must wait for
/// it first, and may be stopped itself.
constexpr std::chrono::milliseconds kDebuggerPause{20};

/// The errno value of a child that could not be executed, which it passes to its parent through
/// shared memory. Unlike the usual close-on-exec pipe, the parent does not have to wait until the
/// child has called exec. An initializer of Boost.Process.
class ExecError {
 public:
  ExecError()
      : value_(static_cast<int*>(::mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE,
                                        MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (value_ == MAP_FAILED) {
      throw Error(Errc::process, std::string("mmap failed: ") + std::strerror(errno));
    }
  }
  ExecError(const ExecError&) = delete;
  ExecError& operator=(const ExecError&) = delete;
  ~ExecError() { ::munmap(value_, sizeof(int)); }

  void on_exec_error(process::posix::default_launcher&, const process::filesystem::path&,
                     const char* const*, const process::error_code& error) const noexcept {
    *value_ = error.value();
  }
  /// Returns the child's error, or 0 if there was none. Call it after the child has ended.
  [[nodiscard]] int get() const noexcept { return *value_; }

 private:
  int* value_;
};

/// Sets close-on-exec on all descriptors from `first` on: Asio opens its sockets without the flag.
void close_on_exec_from(int first) noexcept {
  if (::syscall(SYS_close_range, first, ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
    for (int fd = first; fd < ::getdtablesize(); ++fd) {  // before Linux 5.11
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  }
}

constexpr std::size_t kBitsOfWord = sizeof(unsigned long) * CHAR_BIT;

std::vector<unsigned long> mask_of(const std::vector<int>& numbers) {
  std::vector<unsigned long> mask;
  for (const int number : numbers) {
    const auto bit = static_cast<std::size_t>(number);
    mask.resize(std::max(mask.size(), bit / kBitsOfWord + 1));
    mask[bit / kBitsOfWord] |= 1UL << bit % kBitsOfWord;
  }
  return mask;
}

/// Prepares a new worker between fork and exec, as an initializer of Boost.Process. The code there
/// must not allocate memory, because another thread may have held the allocator's lock at the time
/// of the fork; the constructor therefore computes everything in the parent.
class ChildSetup {
 public:
  /// `descriptors`: the worker's limit on file descriptors; empty keeps the launcher's limit.
  ChildSetup(const WorkerSpec& spec, const std::optional<rlimit>& descriptors)
      : spec_(spec), descriptors_(descriptors), core_mask_(mask_of(spec.cores)) {}

  process::error_code on_exec_setup(process::posix::default_launcher&,
                                    const process::filesystem::path&,
                                    const char* const*) const noexcept {
    if (::setpgid(0, spec_.process_group) != 0) {
      ::setpgid(0, 0);  // that group has no process any more
    }
    // The kernel kills the worker when the launcher's thread dies, even by SIGKILL.
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent_) {
      ::_exit(128 + SIGKILL);  // the launcher died before the line above took effect
    }
    bind();
    close_on_exec_from(STDERR_FILENO + 1);
    if (spec_.reports >= 0) {
      ::fcntl(spec_.reports, F_SETFD, 0);
    }
    if (descriptors_) {
      ::setrlimit(RLIMIT_NOFILE, &*descriptors_);
    }
    // Ignored signals and the signal mask survive exec, so the launcher's settings are undone.
    std::signal(SIGPIPE, SIG_DFL);
    std::signal(SIGXFSZ, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    return {};
  }

 private:
  /// Binds the worker to its cores and NUMA node. Errors are ignored, because a container's seccomp
  /// profile may forbid both calls, and a worker without binding is only slower.
  void bind() const noexcept {
    if (!core_mask_.empty()) {
      ::syscall(SYS_sched_setaffinity, 0, core_mask_.size() * sizeof(unsigned long),
                core_mask_.data());
    }
    if (spec_.numa_node >= 0 && static_cast<std::size_t>(spec_.numa_node) < kBitsOfWord) {
      constexpr int kPreferred = 1;  // MPOL_PREFERRED of linux/mempolicy.h
      const unsigned long node = 1UL << spec_.numa_node;
      // set_mempolicy() decrements the size of the mask before use (get_nodes() in mm/mempolicy.c).
      ::syscall(SYS_set_mempolicy, kPreferred, &node, kBitsOfWord + 1);
    }
  }

  const WorkerSpec& spec_;
  pid_t parent_ = ::getpid();
  const std::optional<rlimit>& descriptors_;
  std::vector<unsigned long> core_mask_;  ///< one bit per CPU core; empty: any core
};

std::vector<std::string> environment_strings(const WorkerSpec& spec) {
  std::vector<std::string> strings;
  strings.reserve(spec.environment.size() + 1);
  for (const auto& [name, value] : spec.environment) {
    strings.emplace_back(name).append("=").append(value);
  }
  if (spec.reports >= 0 && !spec.reports_variable.empty()) {
    strings.push_back(spec.reports_variable + "=" + std::to_string(spec.reports));
  }
  return strings;
}

/// `streams` is passed by reference because its move constructor closes descriptors that it does
/// not own (process_io_binding of Boost 1.86 to 1.88 at least).
pid_t start(const WorkerSpec& spec, process::process_stdio& streams,
            const WorkerSurroundings& surroundings, const ExecError& exec_error) {
  const std::vector<std::string> environment = environment_strings(spec);
  std::vector<const char*> environment_pointers;
  environment_pointers.reserve(environment.size() + 1);
  for (const std::string& entry : environment) {
    environment_pointers.push_back(entry.c_str());
  }
  environment_pointers.push_back(nullptr);
  spawn::ChildLauncher launcher(surroundings.cgroup != nullptr ? surroundings.cgroup->directory()
                                                               : -1);
  launcher.env = environment_pointers.data();
  return launcher.start(
      spec.command.front(), {spec.command.begin() + 1, spec.command.end()}, streams,
      ChildSetup(spec, surroundings.descriptors),
      process::process_start_dir(spec.working_directory.empty() ? "." : spec.working_directory),
      exec_error);
}

}  // namespace

struct WorkerProcess::Process {
  explicit Process(const asio::any_io_executor& executor) : end(executor) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (pid > 0 && !reaped) {
      ::kill(pid, SIGKILL);
      spawn::reap_within(pid, spawn::kTimeAfterKill);  // else the keeper reports it
    }
  }

  pid_t pid = -1;
  pid_t joined = 0;  ///< process group that the worker joined; 0: its own
  ExecError exec_error;
  asio::posix::stream_descriptor end;  ///< readable when the process has ended; `watch_end_of`
  bool reaped = false;
};

WorkerProcess::WorkerProcess(const asio::any_io_executor& executor, const WorkerSpec& spec, int out,
                             int err, const WorkerSurroundings& surroundings)
    : process_(std::make_unique<Process>(executor)) {
  process::process_stdio streams{{}, {out}, {err}};
  UniqueFd nothing;
  if (spec.input >= 0) {
    streams.in.fd = spec.input;
  } else if (!spec.inherits_stdin) {
    nothing.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    streams.in.fd = nothing.get();
  }
  const pid_t child = surroundings.fork_server != nullptr
                          ? surroundings.fork_server->start(
                                spec, nothing ? nothing.get() : std::max(spec.input, 0), out, err)
                          : start(spec, streams, surroundings, process_->exec_error);
  if (child < 0) {
    throw Error(Errc::process,
                "cannot start a process for rank " + std::to_string(spec.rank) + ": " +
                    std::strerror(errno),
                spec.rank);
  }
  // Parent and child both call setpgid, so that the group is set whichever of them runs first.
  ::setpgid(child, spec.process_group);
  process_->pid = child;
  process_->joined = ::getpgid(child) == spec.process_group ? spec.process_group : 0;
  process_->end.assign(watch_end_of(child).release());
}

WorkerProcess::WorkerProcess(WorkerProcess&&) noexcept = default;
WorkerProcess& WorkerProcess::operator=(WorkerProcess&&) noexcept = default;
WorkerProcess::~WorkerProcess() = default;

asio::awaitable<ProcessEnd> WorkerProcess::wait() {
  const auto [error] = co_await process_->end.async_wait(asio::posix::stream_descriptor::wait_read,
                                                         asio::as_tuple(asio::use_awaitable));
  if (error) {
    throw Error(Errc::process,
                "waiting for process " + std::to_string(pid()) + " failed: " + error.message());
  }
  int wait_status = 0;
  rusage usage{};
  pid_t reaped = 0;
  while ((reaped = ::wait4(pid(), &wait_status, WNOHANG, &usage)) == 0) {  // see kDebuggerPause
    asio::steady_timer pause(process_->end.get_executor(), kDebuggerPause);
    co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  process_->reaped = true;
  if (reaped < 0) {
    co_return ProcessEnd{ProcessEnd::Kind::killed, SIGKILL};  // reaped by end_descendants()
  }
  if (const int why = process_->exec_error.get(); why != 0) {
    co_return ProcessEnd{ProcessEnd::Kind::not_executed, why};
  }
  peak_memory_ = static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  co_return ProcessEnd::from_wait_status(wait_status);
}

pid_t WorkerProcess::pid() const noexcept {
  return process_->pid;
}

// waitid() with WNOHANG succeeds with si_pid 0 while the child runs.
bool WorkerProcess::has_ended() const noexcept {
  siginfo_t info{};
  return process_->reaped ||
         ::waitid(P_PID, static_cast<id_t>(pid()), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
         info.si_pid != 0;
}

bool WorkerProcess::has_joined() const noexcept {
  return process_->joined != 0;
}

void WorkerProcess::signal(int signal) const noexcept {
  if (!process_ || process_->reaped) {
    return;
  }
  if (!has_joined()) {
    if (::kill(-pid(), signal) != 0) {  // it has moved to another group
      ::kill(pid(), signal);
    }
    return;
  }
  // The group that it joined also contains the guardian, which must not get the signal.
  ::kill(pid(), signal);
  for (const pid_t descendant : descendants(pid())) {
    if (::getpgid(descendant) == process_->joined) {
      ::kill(descendant, signal);
    }
  }
}

}  // namespace acc::launcher::supervision
