// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"
#include "output/output_mux.hpp"
#include "supervision/worker_process.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::supervision {

/// A Python process that has imported modules, and from which the workers of a job are forked
/// (--preload). Its program is fork_server.py. The workers become children of this process, which
/// must be the subreaper above the server, and differ from started ones only in what Python sets at
/// its own start. The server ends with this object, or with the launcher.
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

  /// Forks a worker with these streams, which waits for `release`. Returns its pid. `cgroup`: the
  /// control group to join; may be null. Call it after `ready`. Blocks while the server forks.
  /// Throws Error(process).
  pid_t fork(const WorkerSpec& spec, int in, int out, int err, const Cgroup* cgroup);

  /// Starts the forked workers, which are now children of this process. Throws Error(process).
  void release();

  /// The server's pid; 0 if it does not run.
  [[nodiscard]] pid_t pid() const noexcept;

 private:
  void start();
  std::string answer();
  [[nodiscard]] Error failed(const std::string& why) const;

  boost::asio::any_io_executor executor_;
  output::OutputMux& output_;
  Options options_;
  std::optional<WorkerProcess> process_;
  UniqueFd control_;
  bool forks_ = false;  ///< workers have been forked and not been released
};

}  // namespace acc::launcher::supervision
