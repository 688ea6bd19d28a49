// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "output/worker_targets.hpp"
#include "supervision/cgroup.hpp"
#include "supervision/process_end.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <sys/resource.h>
#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::supervision {

/// Parameters for starting one worker.
struct WorkerSpec {
  int rank = 0;
  int local_rank = 0;
  std::vector<std::string> command;  ///< path of the program, then its arguments
  std::map<std::string, std::string> environment;
  std::string working_directory;  ///< empty: the launcher's
  bool inherits_stdin = false;    ///< true: uses the launcher's stdin and ignores `input`
  int input = -1;                 ///< stdin, owned by the caller; -1: /dev/null
  int reports = -1;               ///< descriptor that it keeps, owned by the caller; -1: none
  std::string reports_variable;   ///< gets the number of that descriptor; empty: none
  pid_t process_group = 0;        ///< existing group to join; 0: creates its own
  bool inherits_output = false;   ///< true: uses the launcher's stdout and stderr
  std::string prefix;             ///< console prefix of each line, unless `inherits_output`
  output::WorkerTargets targets;  ///< destinations of the output, unless `inherits_output`
  std::vector<int> cores;         ///< CPU cores to bind to; empty: the launcher's
  int numa_node = -1;             ///< preferred NUMA node for memory; -1: any
};

class ForkServer;

/// Resources that the workers of a job share.
struct WorkerSurroundings {
  Cgroup* cgroup = nullptr;           ///< control group to start in; null: the launcher's
  pid_t guardian_group = 0;           ///< process group that is not killed as a whole
  std::optional<rlimit> descriptors;  ///< limit on file descriptors; empty: the launcher's
  ForkServer* fork_server = nullptr;  ///< forks the workers; null: they are started
};

/// One running worker, usually the leader of its own process group. The kernel kills it when the
/// thread that started it dies (PR_SET_PDEATHSIG). It starts with an empty signal mask and with no
/// descriptors except 0, 1, 2 and WorkerSpec::reports.
class WorkerProcess {
 public:
  /// Starts the worker with the descriptors `out` and `err` as stdout and stderr; with a fork
  /// server, one that ForkServer::fork has forked. If the program cannot be executed, this does not
  /// throw; `wait()` returns `not_executed`. Throws Error(process) if fork fails.
  WorkerProcess(const boost::asio::any_io_executor& executor, const WorkerSpec& spec, int out,
                int err, const WorkerSurroundings& surroundings = {});
  WorkerProcess(WorkerProcess&&) noexcept;
  WorkerProcess& operator=(WorkerProcess&&) noexcept;
  ~WorkerProcess();  ///< kills and reaps the process if it still runs

  [[nodiscard]] pid_t pid() const noexcept;

  /// Peak resident memory in bytes (ru_maxrss of wait4()): the maximum over the worker and the
  /// children that it waited for. It is at least the launcher's size at the time of the fork. 0
  /// until `wait()` has completed, or if it is unknown.
  [[nodiscard]] std::int64_t peak_memory() const noexcept { return peak_memory_; }

  /// Completes when the process has ended, and reaps it. Call it at most once.
  boost::asio::awaitable<ProcessEnd> wait();

  /// True if the process has ended, even if `wait` has not completed yet. Does not reap it.
  [[nodiscard]] bool has_ended() const noexcept;

  /// True if the worker is in the group `WorkerSpec::process_group`; false if it has its own.
  [[nodiscard]] bool has_joined() const noexcept;

  /// Sends a signal to the worker's own process group. If the worker joined another group, sends it
  /// to the worker and those of its descendants that are in that group. Does nothing once the
  /// worker is reaped.
  void signal(int signal) const noexcept;

 private:
  struct Process;
  std::unique_ptr<Process> process_;
  std::int64_t peak_memory_ = 0;
};

}  // namespace acc::launcher::supervision
