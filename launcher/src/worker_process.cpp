#include "worker_process.hpp"

#include "acc/base/error.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/detail/throw_error.hpp>  // Boost.Process 1.81 forgets it
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/process/v2/posix/default_launcher.hpp>
#include <boost/process/v2/process.hpp>
#include <boost/process/v2/start_dir.hpp>
#include <boost/process/v2/stdio.hpp>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;
namespace process = boost::process::v2;

namespace {

/// Boost 1.81's own closing misses every descriptor below its error pipe (whitelist[idx] is taken
/// for both ends of a gap), and Asio's sockets are not close-on-exec.
void close_on_exec_from(int first) {
  if (::close_range(static_cast<unsigned>(first), ~0U, CLOSE_RANGE_CLOEXEC) != 0) {
    for (int fd = first; fd < ::getdtablesize(); ++fd) {  // before Linux 5.11
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  }
}

/// What the child does between fork and exec, as an initializer of Boost.Process.
struct ChildSetup {
  pid_t parent = 0;
  bool takes_terminal = false;

  process::error_code on_exec_setup(process::posix::default_launcher&,
                                    const process::filesystem::path&, const char* const*) const {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) {
      ::_exit(128 + SIGKILL);  // the launcher died before the line above took effect
    }
    if (takes_terminal) {
      ::tcsetpgrp(STDIN_FILENO, ::getpid());  // SIGTTOU is still blocked
    }
    close_on_exec_from(STDERR_FILENO + 1);
    std::signal(SIGPIPE, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    return {};
  }

  /// Boost would call exit(), which runs the launcher's own atexit functions in the child.
  template <typename... Arguments>
  [[noreturn]] void on_exec_error(Arguments&&...) const {
    ::_exit(127);
  }
};

std::vector<std::string> environment_strings(const WorkerSpec& spec) {
  std::vector<std::string> strings;
  strings.reserve(spec.environment.size());
  for (const auto& [name, value] : spec.environment) {
    strings.push_back(name + "=" + value);
  }
  return strings;
}

}  // namespace

struct WorkerProcess::Process {
  process::process handle;
};

WorkerProcess::WorkerProcess(asio::any_io_executor executor, const WorkerSpec& spec, int out,
                             int err) {
  const std::vector<std::string> environment = environment_strings(spec);
  std::vector<const char*> environment_pointers;
  for (const std::string& entry : environment) {
    environment_pointers.push_back(entry.c_str());
  }
  environment_pointers.push_back(nullptr);

  process::process_stdio streams{{}, {out}, {err}};
  UniqueFd nothing;
  if (!spec.inherits_stdin) {
    nothing.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    streams.in.fd = nothing.get();
  }
  const ChildSetup setup{::getpid(), spec.inherits_stdin && ::isatty(STDIN_FILENO) == 1};
  const std::string directory = spec.working_directory.empty() ? "." : spec.working_directory;

  // Boost tells the executor's context of the fork, and Asio then registers every descriptor anew
  // in the child, which costs time and throws for a file. A context of its own has none.
  asio::io_context for_fork(1);
  process::posix::default_launcher launcher;
  launcher.env = environment_pointers.data();
  process::error_code error;
  process::process started =
      launcher(asio::any_io_executor(for_fork.get_executor()), error, spec.command.front(),
               std::vector<std::string>(spec.command.begin() + 1, spec.command.end()), streams,
               setup, process::process_start_dir(directory));
  pid_ = launcher.pid;
  if (pid_ < 0) {
    throw Error(
        Errc::process,
        "cannot start a process for rank " + std::to_string(spec.rank) + ": " + error.message(),
        spec.rank);
  }
  if (error) {
    exec_error_ = error.value();
    ::waitpid(pid_, nullptr, 0);  // Boost 1.81 leaves the child that could not exec unreaped
    process_ = std::make_unique<Process>(process::process(std::move(executor)));
    return;
  }
  started = process::process(for_fork.get_executor());
  process_ = std::make_unique<Process>(process::process(std::move(executor), pid_));
}

WorkerProcess::WorkerProcess(WorkerProcess&&) noexcept = default;
WorkerProcess::~WorkerProcess() = default;

asio::awaitable<ProcessEnd> WorkerProcess::wait() {
  if (exec_error_ != 0) {
    co_return ProcessEnd{ProcessEnd::Kind::not_executed, exec_error_};
  }
  const auto [error, code] =
      co_await process_->handle.async_wait(asio::as_tuple(asio::use_awaitable));
  if (error == boost::system::errc::no_child_process) {
    co_return ProcessEnd{ProcessEnd::Kind::killed, SIGKILL};  // end_descendants() was faster
  }
  if (error) {
    throw Error(Errc::process,
                "waiting for process " + std::to_string(pid_) + " failed: " + error.message());
  }
  // The portable code shows exit(9) and SIGKILL alike; the native one is the raw wait status.
  co_return ProcessEnd::from_wait_status(process_->handle.native_exit_code());
}

void WorkerProcess::signal(int signal) const noexcept {
  if (process_->handle.is_open()) {
    ::kill(-pid_, signal);
  }
}

}  // namespace acc::launcher
