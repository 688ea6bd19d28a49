#pragma once

#include "acc/rendezvous/gate.hpp"
#include "output/output_mux.hpp"
#include "supervision/job_control.hpp"
#include "supervision/process_state.hpp"
#include "supervision/signals.hpp"
#include "supervision/supervisor_table.hpp"
#include "supervision/worker_process.hpp"
#include "supervision/worker_record.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace acc::launcher {

/// How the workers of one attempt ended, on this machine.
struct AttemptOutcome {
  std::vector<WorkerRecord> workers;         ///< by local rank
  bool gave_up = false;  ///< something outlived SIGKILL: workers without an `end`, or
  std::vector<std::string> left_behind;  ///< "pid 17 (name), in uninterruptible sleep (where)"
};

/// Runs the workers of one machine and applies the policy of `job_step`. All in the loop's thread,
/// which is also the one whose death kills the workers. Nothing is polled but for `stuck_timeout`.
class Supervisor {
 public:
  /// From SIGKILL until a worker counts as one that cannot be killed, at least: a large one gives
  /// its memory back first.
  static constexpr std::chrono::milliseconds kTimeToDie{10'000};

  struct Options {
    std::chrono::milliseconds shutdown_timeout{30'000};
    std::chrono::milliseconds stuck_timeout{0};  ///< of uninterruptible sleep; 0: no limit
    WorkerSurroundings surroundings;
    const JobControl* job_control = nullptr;  ///< for a worker with `process_group`
    std::size_t other_descriptors = 0;  ///< that the job will need here: clients of its store
    /// Called when all have started, and whenever one has ended.
    std::function<void(int running)> on_running;
    /// Asked when a worker has failed, and at each further end, for the index of the worker that the
    /// failure is put down to; a last time when `cause_timeout` is over, and then it has to name one.
    /// Until it does, the others are not told to end: the cause may be one of them that is about to
    /// end. Empty: the worker that failed first.
    std::function<std::optional<std::size_t>(const std::vector<WorkerRecord>&, bool is_last)>
        find_cause;
    std::chrono::milliseconds cause_timeout{5'000};
    /// Called with that worker before the others are told to end.
    std::function<void(const WorkerRecord&)> on_first_failure;
    /// Called before the launcher stops because the worker in its process group has.
    std::function<void()> before_stop;
  };

  Supervisor(boost::asio::any_io_executor executor, OutputMux& output, Options options);

  /// Starts all workers and completes when all have ended and no descendant of theirs is left.
  /// Once. Throws Error(config) where too few descriptors are allowed, before anything is started;
  /// Error(process) when a process cannot be had, and the others are then killed.
  boost::asio::awaitable<AttemptOutcome> run(std::vector<WorkerSpec> specs);

  /// Hands a signal on to the workers that do not have it. SIGCHLD reaps orphans that came to this
  /// process, their subreaper, and tells of stopped workers.
  void on_signal(PassedSignal signal);

  /// Ends the job with a signal that asked for it; a second one kills.
  void stop(PassedSignal signal);

  /// True if `worker` is in the launcher's process group: the leader, of which there is one at most.
  [[nodiscard]] bool is_leader(const WorkerRecord& worker) const;
  /// True while the leader runs and is the only worker.
  [[nodiscard]] bool is_led_alone() const;

  /// Another machine of the job failed.
  void on_peer_failure();

 private:
  void start(const std::vector<WorkerSpec>& specs);
  boost::asio::awaitable<void> watch(std::size_t index);
  void look_for_stuck();
  void look_for_cause(bool is_last);
  void fail(std::size_t index);
  void end_stragglers();
  void give_up();
  void tell_running() const;
  void handle(JobEvent event);
  void tell_to_end(int signal);
  void signal_running(PassedSignal signal);
  void follow_leader();
  [[nodiscard]] bool leader_runs() const;
  void stop_workers();
  void kill_workers();
  void start_clock(std::chrono::milliseconds limit);

  boost::asio::any_io_executor executor_;
  OutputMux& output_;
  Options options_;
  JobState state_ = JobState::running;
  std::vector<WorkerProcess> processes_;
  AttemptOutcome outcome_;
  std::size_t remaining_ = 0;
  std::size_t first_to_fail_ = 0;
  PassedSignal signal_for_stop_{SIGTERM};
  std::optional<std::size_t> leader_;  ///< index of the worker in the launcher's process group
  bool leader_is_stopped_ = false;
  std::set<int> passed_on_;  ///< signals that the workers got as they came
  boost::asio::steady_timer clock_;
  boost::asio::steady_timer next_look_;
  StuckWatch stuck_watch_;
  rendezvous::Gate ended_;
};

}  // namespace acc::launcher
