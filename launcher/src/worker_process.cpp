#include "worker_process.hpp"

#include "acc/base/error.hpp"
#include "child_setup.hpp"
#include "process_watch.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fcntl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;

namespace {

/// A pipe that closes itself when the child has become the program.
struct ErrorPipe {
  UniqueFd read;
  UniqueFd write;

  ErrorPipe() {
    std::array<int, 2> ends = {-1, -1};
    if (::pipe2(ends.data(), O_CLOEXEC) == 0) {
      read.reset(ends[0]);
      write.reset(::fcntl(ends[1], F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
      ::close(ends[1]);
    }
  }

  /// The errno that the child could not become the program for, or 0.
  int wait_for_exec() {
    write.reset();
    int error = 0;
    ssize_t count = 0;
    while ((count = ::read(read.get(), &error, sizeof error)) < 0 && errno == EINTR) {
    }
    return count == sizeof error ? error : 0;
  }
};

pid_t fork_worker(const ChildSetup& setup, const ErrorPipe& pipe) {
  const pid_t pid = pipe.write ? ::fork() : -1;
  if (pid == 0) {
    const int error = setup.become_worker();
    static_cast<void>(!::write(pipe.write.get(), &error, sizeof error));
    ::_exit(127);
  }
  return pid;
}

bool reap(pid_t pid, int& wait_status) noexcept {
  pid_t reaped = 0;
  while ((reaped = ::waitpid(pid, &wait_status, 0)) < 0 && errno == EINTR) {
  }
  return reaped == pid;
}

}  // namespace

struct WorkerProcess::Process {
  Process(asio::any_io_executor executor, pid_t child)
      : pid(child), end(std::move(executor), watch_end_of(child).release()) {}
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  ~Process() {
    if (!reaped) {
      ::kill(pid, SIGKILL);
      int ignored = 0;
      reap(pid, ignored);
    }
  }

  pid_t pid;
  asio::posix::stream_descriptor end;
  bool reaped = false;
};

WorkerProcess::WorkerProcess(asio::any_io_executor executor, const WorkerSpec& spec, int out,
                             int err) {
  UniqueFd nothing;
  if (!spec.inherits_stdin) {
    nothing.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  }
  const ChildSetup setup(spec, {nothing.get(), out, err});
  ErrorPipe pipe;
  pid_ = fork_worker(setup, pipe);
  if (pid_ < 0) {
    throw Error(Errc::process,
                "cannot start a process for rank " + std::to_string(spec.rank) + ": " +
                    std::strerror(errno),
                spec.rank);
  }
  exec_error_ = pipe.wait_for_exec();
  if (exec_error_ != 0) {
    int ignored = 0;
    reap(pid_, ignored);
    return;
  }
  process_ = std::make_unique<Process>(std::move(executor), pid_);
}

WorkerProcess::WorkerProcess(WorkerProcess&&) noexcept = default;
WorkerProcess::~WorkerProcess() = default;

asio::awaitable<ProcessEnd> WorkerProcess::wait() {
  if (exec_error_ != 0) {
    co_return ProcessEnd{ProcessEnd::Kind::not_executed, exec_error_};
  }
  const auto [error] = co_await process_->end.async_wait(asio::posix::stream_descriptor::wait_read,
                                                         asio::as_tuple(asio::use_awaitable));
  if (error) {
    throw Error(Errc::process,
                "waiting for process " + std::to_string(pid_) + " failed: " + error.message());
  }
  int wait_status = 0;
  const bool status_is_known = reap(pid_, wait_status);
  process_->reaped = true;
  if (!status_is_known) {
    co_return ProcessEnd{ProcessEnd::Kind::killed, SIGKILL};  // end_descendants() was faster
  }
  co_return ProcessEnd::from_wait_status(wait_status);
}

void WorkerProcess::signal(int signal) const noexcept {
  if (process_ && !process_->reaped) {
    ::kill(-pid_, signal);
  }
}

}  // namespace acc::launcher
