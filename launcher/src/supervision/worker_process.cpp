#include "supervision/worker_process.hpp"

#include "acc/base/error.hpp"
#include "supervision/child_setup.hpp"
#include "supervision/process_watch.hpp"
#include "supervision/worker_launcher.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/process/v2/detail/last_error.hpp>  // Boost.Process 1.81 forgets it
#include <boost/process/v2/start_dir.hpp>
#include <boost/process/v2/stdio.hpp>
#include <fcntl.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>
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

/// A child that could not become the program is left to be reaped.
WorkerLauncher::Child start(const WorkerSpec& spec, process::process_stdio streams,
                            const WorkerSurroundings& surroundings) {
  const std::vector<std::string> environment = environment_strings(spec);
  std::vector<const char*> environment_pointers;
  environment_pointers.reserve(environment.size() + 1);
  for (const std::string& entry : environment) {
    environment_pointers.push_back(entry.c_str());
  }
  environment_pointers.push_back(nullptr);
  return WorkerLauncher(surroundings.cgroup)
      .start(spec.command.front(),
             std::vector<std::string>(spec.command.begin() + 1, spec.command.end()),
             environment_pointers, streams, ChildSetup(spec, surroundings.descriptors),
             process::process_start_dir(spec.working_directory.empty() ? "."
                                                                       : spec.working_directory));
}

bool reap(pid_t pid, int& wait_status, rusage& usage) noexcept {
  pid_t reaped = 0;
  while ((reaped = ::wait4(pid, &wait_status, 0, &usage)) < 0 && errno == EINTR) {
  }
  return reaped == pid;
}

void reap(pid_t pid) noexcept {
  int ignored = 0;
  rusage unused{};
  reap(pid, ignored, unused);
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
      reap(pid);
    }
  }

  pid_t pid;
  asio::posix::stream_descriptor end;
  bool reaped = false;
};

WorkerProcess::WorkerProcess(const asio::any_io_executor& executor, const WorkerSpec& spec, int out,
                             int err, const WorkerSurroundings& surroundings) {
  process::process_stdio streams{{}, {out}, {err}};
  UniqueFd nothing;
  if (!spec.inherits_stdin) {
    nothing.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    streams.in.fd = nothing.get();
  }
  const WorkerLauncher::Child child = start(spec, std::move(streams), surroundings);
  pid_ = child.pid;
  if (pid_ < 0) {
    throw Error(Errc::process,
                "cannot start a process for rank " + std::to_string(spec.rank) + ": " +
                    std::strerror(child.error),
                spec.rank);
  }
  if (child.error != 0) {
    exec_error_ = child.error;
    reap(pid_);
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
  rusage usage{};
  const bool status_is_known = reap(pid_, wait_status, usage);
  process_->reaped = true;
  if (!status_is_known) {
    co_return ProcessEnd{ProcessEnd::Kind::killed, SIGKILL};  // end_descendants() was faster
  }
  peak_memory_ = static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  co_return ProcessEnd::from_wait_status(wait_status);
}

void WorkerProcess::signal(int signal) const noexcept {
  if (process_ && !process_->reaped) {
    ::kill(-pid_, signal);
  }
}

}  // namespace acc::launcher
