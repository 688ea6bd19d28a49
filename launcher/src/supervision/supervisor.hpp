// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/gate.hpp"
#include "output/output_mux.hpp"
#include "supervision/descendants.hpp"
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
#include <utility>
#include <vector>

namespace acc::launcher::supervision {

/// How the workers of one attempt ended on this machine.
struct AttemptOutcome {
  std::vector<WorkerRecord> workers;  ///< indexed by local rank
  /// True if some process survived SIGKILL: workers without an `end`, or the processes in
  /// `left_behind`.
  bool gave_up = false;
  std::vector<std::string> left_behind;  ///< "pid 17 (name), in uninterruptible sleep (where)"
};

/// Starts and supervises the workers of one machine, following the state machine of `attempt_step`.
/// It runs in the event loop's thread, and only there: the kernel kills the workers if the thread
/// that forked them dies (PR_SET_PDEATHSIG). Event-driven, except that `stuck_timeout` needs
/// polling.
///
/// Life cycle: construct, `run` once, destroy. A restarted job uses a new Supervisor per attempt.
class Supervisor {
 public:
  /// Minimum time from SIGKILL until a worker counts as one that cannot be killed. A worker with
  /// much memory needs seconds to release it.
  static constexpr std::chrono::milliseconds kTimeToDie{10'000};

  struct Options {
    std::chrono::milliseconds shutdown_timeout{30'000};  ///< from SIGTERM to SIGKILL
    std::chrono::milliseconds stuck_timeout{0};  ///< limit of uninterruptible sleep; 0: none
    WorkerSurroundings surroundings;
    const JobControl* job_control = nullptr;  ///< required for a worker with `process_group`
    std::size_t other_descriptors = 0;  ///< file descriptors to keep free: clients of the store
    /// Called with the number of running workers, after all have started and after each end.
    std::function<void(int running)> on_running;
    /// Returns the index of the worker that is the root cause of a failure, or empty while that is
    /// not known yet. Called after the first failure, after each further end, and with `is_last`
    /// when `cause_timeout` is over; an empty result then selects the worker that failed first. The
    /// other workers get no SIGTERM before that, since the cause may be one that is about to end.
    /// If this function is empty, the worker that failed first is the cause.
    std::function<std::optional<std::size_t>(const std::vector<WorkerRecord>&, bool is_last)>
        find_cause;
    std::chrono::milliseconds cause_timeout{5'000};
    /// Called when a worker has ended with an error while no other failure is known. True if
    /// `replace` will start it again, while the others keep their processes and rejoin. If this
    /// function is empty, no worker is.
    std::function<bool(const WorkerRecord&)> is_replaced;
    /// True if all workers of which this function gets the records and that run have rejoined
    /// since.
    std::function<bool(const std::vector<WorkerRecord>&)> have_rejoined;
    /// Called when they have, or have not in `shutdown_timeout`; all workers are then ended.
    std::function<void(bool rejoined)> on_rejoined;
    /// Called with the root cause before the other workers are terminated.
    std::function<void(const WorkerRecord&)> on_first_failure;
    /// Called when a worker is stuck, before the workers are ended.
    std::function<boost::asio::awaitable<void>()> look_inside;
    /// Called before the launcher stops (Ctrl-Z) because the worker in its process group stopped.
    std::function<void()> before_stop;
  };

  Supervisor(boost::asio::any_io_executor executor, output::OutputMux& output, Options options);

  /// Starts all workers, and completes when all have ended and no descendant of them is left. Call
  /// it once. Throws Error(config) before the first start if the limit on file descriptors is too
  /// low. Throws Error(process) if a process cannot be created; workers already started are killed.
  boost::asio::awaitable<AttemptOutcome> run(std::vector<WorkerSpec> specs);

  /// Handles a signal that does not end the job. SIGCHLD reaps orphans, which become children of
  /// this process because it is a subreaper, and detects stopped workers. Any other signal is
  /// passed on to the workers that did not get it from the terminal.
  void on_signal(PassedSignal signal);

  /// Ends the job gracefully by the signal that the user or job manager sent. The second call sends
  /// SIGKILL.
  void stop(PassedSignal signal);

  /// The workers that have been started, by local rank.
  [[nodiscard]] const std::vector<WorkerRecord>& workers() const noexcept {
    return outcome_.workers;
  }
  /// True if `worker` is the leader: the worker in the launcher's process group. There is at most
  /// one.
  [[nodiscard]] bool is_leader(const WorkerRecord& worker) const;
  /// True while the leader runs and is the only worker.
  [[nodiscard]] bool is_led_alone() const;

  /// Ends the workers because another machine of the job failed.
  void on_peer_failure();

  /// Workers of other machines are lost: those of this one are kept for the next round.
  void hold() { handle(AttemptEvent::workers_lost); }
  /// The next round is formed: starts those workers that have ended, and waits until all have
  /// rejoined, at most for `limit`. specs: of all workers.
  void replace(std::vector<WorkerSpec> specs, std::chrono::seconds limit);
  /// Returns that limit.
  [[nodiscard]] std::chrono::seconds time_to_rejoin() const noexcept { return time_to_rejoin_; }
  [[nodiscard]] AttemptState state() const noexcept { return state_; }

 private:
  void start(const std::vector<WorkerSpec>& specs);
  WorkerProcess start(const WorkerSpec& spec);
  void note_start(std::size_t index, const WorkerSpec& spec);
  void start_again(std::size_t index, const WorkerSpec& spec);
  void replace_ended();
  void look_for_rejoined();
  [[nodiscard]] Spared spared() const noexcept;
  boost::asio::awaitable<void> watch(std::size_t index);
  void look_for_stuck();
  boost::asio::awaitable<void> end_stuck(std::size_t index);
  void look_for_cause(bool is_last);
  void fail(std::size_t index);
  void end_stragglers();
  void give_up();
  void tell_running() const;
  void handle(AttemptEvent event);
  void tell_to_end(int signal);
  void signal_running(PassedSignal signal);
  void follow_leader();
  [[nodiscard]] bool leader_runs() const;
  void stop_workers();
  void kill_workers();
  void start_clock(std::chrono::milliseconds limit);

  boost::asio::any_io_executor executor_;
  output::OutputMux& output_;
  Options options_;
  AttemptState state_ = AttemptState::running;
  std::vector<WorkerProcess> processes_;
  // What `replace` was given.
  std::vector<WorkerSpec> specs_;
  std::chrono::seconds time_to_rejoin_{};
  AttemptOutcome outcome_;
  std::size_t remaining_ = 0;
  std::size_t first_to_fail_ = 0;
  /// Record of the first worker that was lost since all had rejoined, and its index. Kept as the
  /// worker's record if the others do not rejoin.
  std::optional<std::pair<std::size_t, WorkerRecord>> lost_;
  bool is_lost_to_blame_ = false;
  PassedSignal signal_for_stop_{SIGTERM};
  std::optional<std::size_t> leader_;  ///< index of the worker in the launcher's process group
  bool leader_is_stopped_ = false;
  std::set<int> passed_on_;              ///< signals that were passed on to the workers unchanged
  boost::asio::steady_timer clock_;      ///< limit of the current state; see `start_clock`
  boost::asio::steady_timer next_look_;  ///< next poll for stuck workers
  boost::asio::steady_timer rejoined_look_;  ///< next poll for workers that rejoin
  StuckWatch stuck_watch_;
  rendezvous::Gate ended_;  ///< opens in the state `ended`
};

}  // namespace acc::launcher::supervision
