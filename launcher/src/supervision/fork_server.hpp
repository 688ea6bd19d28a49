// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"
#include "output/output_mux.hpp"
#include "supervision/worker_process.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <sys/types.h>

#include <chrono>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::supervision {

/// A Python process that has imported modules, and from which the workers of a job are forked
/// (--preload). Its program is fork_server.py. The workers become children of this process, which
/// must be the subreaper above the server, and differ from started ones only in what Python sets at
/// its own start. The server ends with this object, or with the launcher. The kernel says which
/// processes are the workers; nothing that the server or a module writes counts as a pid.
class ForkServer {
 public:
  struct Options {
    std::string modules;                   ///< names joined by commas
    std::vector<std::string> interpreter;  ///< path of Python and its flags
    /// The worker that the server resembles while it imports: its command, directory, variables
    /// without rank, and cores.
    WorkerSpec worker;
    std::optional<rlimit> descriptors;  ///< limit on file descriptors; empty: the launcher's
  };

  ForkServer(boost::asio::any_io_executor executor, output::OutputMux& output, Options options);
  ForkServer(const ForkServer&) = delete;
  ForkServer& operator=(const ForkServer&) = delete;

  /// Completes when the modules are imported; starts the server if it does not run. Throws
  /// Error(config) if a module cannot be imported or leaves a process that cannot be forked, and
  /// Error(process) if the server ends by itself.
  boost::asio::awaitable<void> ready();

  /// Forks `count` workers, which become children of this process and wait for `start`. `cgroup`:
  /// the control group to join; may be null. Call it after `ready`. Throws Error(process) if the
  /// server ends, or does not answer in time; it is killed then.
  boost::asio::awaitable<void> fork(int count, const Cgroup* cgroup);

  /// Gives a forked worker its program and its streams, with which it starts. Returns its pid.
  /// Throws Error(process) if none is left.
  pid_t start(const WorkerSpec& spec, int in, int out, int err);

  /// The server's pid; 0 if it does not run.
  [[nodiscard]] pid_t pid() const noexcept;

 private:
  using Socket = boost::asio::posix::stream_descriptor;

  /// A worker that waits for its program. Without the socket it exits.
  struct Forked {
    pid_t pid = 0;
    UniqueFd socket;
  };

  void start_server();
  boost::asio::awaitable<std::string> answer(std::chrono::steady_clock::time_point deadline);
  boost::asio::awaitable<void> ask(char kind, std::span<const int> descriptors,
                                   std::string_view expected);
  boost::asio::awaitable<pid_t> meet(int socket);
  boost::asio::awaitable<void> fail(std::string why);
  [[nodiscard]] std::string who() const;
  [[nodiscard]] Error failed(const std::string& why) const;

  boost::asio::any_io_executor executor_;
  output::OutputMux& output_;
  Options options_;
  std::optional<WorkerProcess> process_;
  Socket control_;
  std::deque<Forked> forked_;  ///< in the order in which they start
};

}  // namespace acc::launcher::supervision
