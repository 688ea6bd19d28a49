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

namespace acc::launcher {

/// All that is needed to start one worker.
struct WorkerSpec {
  int rank = 0;
  int local_rank = 0;
  std::vector<std::string> command;  ///< path of the program, then its arguments
  std::map<std::string, std::string> environment;
  std::string working_directory;  ///< empty: the launcher's
  bool inherits_stdin = false;    ///< else it reads from `input`
  int input = -1;                 ///< the caller's; -1: /dev/null
  pid_t process_group = 0;        ///< that it joins; 0: it leads one of its own
  bool inherits_output = false;   ///< stdout and stderr are the launcher's own
  std::string prefix;             ///< else: of its lines on the console
  WorkerTargets targets;          ///< and where they go
  std::vector<int> cores;         ///< that it is bound to; empty: the launcher's
  int numa_node = -1;             ///< that its memory is taken from first; -1: any
};

/// What the workers of a job share.
struct WorkerSurroundings {
  Cgroup* cgroup = nullptr;           ///< in which they begin; null: the launcher's
  std::optional<rlimit> descriptors;  ///< their limit on them; empty: the launcher's
};

/// One running worker, usually the leader of its own process group. It dies with the thread that
/// started it (PDEATHSIG), has an empty signal mask and no descriptor besides 0, 1 and 2.
class WorkerProcess {
 public:
  /// Starts it with the given descriptors as stdout and stderr. A program that cannot be executed
  /// is no exception: `wait()` tells. Throws Error(process) when there is no process to be
  /// had.
  WorkerProcess(const boost::asio::any_io_executor& executor, const WorkerSpec& spec, int out,
                int err, const WorkerSurroundings& surroundings = {});
  WorkerProcess(WorkerProcess&&) noexcept;
  ~WorkerProcess();  ///< kills and reaps the process if it still runs

  [[nodiscard]] pid_t pid() const noexcept;

  /// Bytes resident at most, its own children's that it waited for included, and no less than the
  /// launcher's when it was forked; 0 until `wait()` has completed, or where it is not known.
  [[nodiscard]] std::int64_t peak_memory() const noexcept { return peak_memory_; }

  /// Completes when the process has ended. Not more than once.
  boost::asio::awaitable<ProcessEnd> wait();

  /// Whether it has ended by now; `wait` still has to tell how.
  [[nodiscard]] bool has_ended() const noexcept;

  /// Whether it is in the process group that it was to join.
  [[nodiscard]] bool has_joined() const noexcept;

  /// To its process group, or to what it started in the one that it has joined; nothing happens
  /// when it has ended.
  void signal(int signal) const noexcept;

 private:
  struct Process;
  std::unique_ptr<Process> process_;
  std::int64_t peak_memory_ = 0;
};

}  // namespace acc::launcher
