#include "supervision/worker_process.hpp"

#include "acc/base/error.hpp"
#include "supervision/child_setup.hpp"
#include "supervision/process_watch.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/detail/throw_error.hpp>  // Boost.Process 1.81 forgets it
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/process/v2/posix/default_launcher.hpp>
#include <boost/process/v2/process.hpp>
#include <boost/process/v2/start_dir.hpp>
#include <boost/process/v2/stdio.hpp>
#include <fcntl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;
namespace process = boost::process::v2;

namespace {

std::vector<std::string> environment_strings(const WorkerSpec& spec) {
  std::vector<std::string> strings;
  strings.reserve(spec.environment.size());
  for (const auto& [name, value] : spec.environment) {
    strings.push_back(name + "=" + value);
  }
  return strings;
}

struct Started {
  pid_t pid;
  process::error_code error;
};

/// A child that could not become the program is left to be reaped.
Started start(const WorkerSpec& spec, process::process_stdio streams) {
  const std::vector<std::string> environment = environment_strings(spec);
  std::vector<const char*> environment_pointers;
  for (const std::string& entry : environment) {
    environment_pointers.push_back(entry.c_str());
  }
  environment_pointers.push_back(nullptr);
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
               ChildSetup(spec), process::process_start_dir(directory));
  started.detach();
  return {launcher.pid, error};
}

bool reap(pid_t pid, int& wait_status) noexcept {
  pid_t reaped = 0;
  while ((reaped = ::waitpid(pid, &wait_status, 0)) < 0 && errno == EINTR) {
  }
  return reaped == pid;
}

}  // namespace

struct WorkerProcess::Process {
  Process(const asio::any_io_executor& executor, pid_t child)
      : pid(child), end(executor, watch_end_of(child).release()) {}
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

WorkerProcess::WorkerProcess(const asio::any_io_executor& executor, const WorkerSpec& spec, int out,
                             int err) {
  process::process_stdio streams{{}, {out}, {err}};
  UniqueFd nothing;
  if (!spec.inherits_stdin) {
    nothing.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    streams.in.fd = nothing.get();
  }
  const Started started = start(spec, std::move(streams));
  pid_ = started.pid;
  if (pid_ < 0) {
    throw Error(Errc::process,
                "cannot start a process for rank " + std::to_string(spec.rank) + ": " +
                    started.error.message(),
                spec.rank);
  }
  if (started.error) {
    exec_error_ = started.error.value();
    int ignored = 0;
    reap(pid_, ignored);
    return;
  }
  process_ = std::make_unique<Process>(executor, pid_);
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
