// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/log.hpp"
#include "acc/base/membership_page.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/rendezvous/gate.hpp"
#include "job/control.hpp"
#include "job/job_table.hpp"
#include "job/log_folder.hpp"
#include "job/phases.hpp"
#include "job/restart_pauses.hpp"
#include "job/rounds.hpp"
#include "job/speaker.hpp"
#include "monitor/rank_monitor.hpp"
#include "report/attempt_evidence.hpp"
#include "report/job_report.hpp"
#include "report/kernel_facts.hpp"
#include "supervision/fork_server.hpp"
#include "supervision/runner.hpp"
#include "supervision/supervisor.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::job {

/// Request to stop the job: a signal, the time limit, a control message or a lost connection.
struct StopRequest {
  int exit_status;
  supervision::PassedSignal signal;  ///< signal for the workers
  std::string reason;
  rendezvous::AttemptEnd::Cause cause = rendezvous::AttemptEnd::Cause::stop;
  /// The reason has been printed already, by the acclaunch that started the machines, on the stream
  /// that this machine's output is merged into.
  bool is_said = false;
  /// A worker died of Ctrl-C or Ctrl-\. The launcher will get the same signal, which is no second
  /// request.
  bool signal_follows = false;
};

/// Returns the event that the attempt has ended in this way.
constexpr JobEvent event_of(const rendezvous::AttemptEnd& end) {
  using Cause = rendezvous::AttemptEnd::Cause;
  return end.cause == Cause::worker || end.cause == Cause::other ? JobEvent::failure_known
                                                                 : JobEvent::stop_known;
}

/// True if workers that this end reaches wait in vain for a peer: one has failed, or its machine is
/// lost. After other ends all of them still run, and may save together before they end.
constexpr bool breaks_groups(const rendezvous::AttemptEnd& end) {
  using Cause = rendezvous::AttemptEnd::Cause;
  constexpr int kLost = 1;  // exit status; a machine that leaves or is late has another
  return end.cause == Cause::worker ||
         ((end.cause == Cause::membership || end.cause == Cause::other) &&
          end.exit_status == kLost);
}

/// One attempt on this machine, until the next one begins.
struct Attempt {
  using Clock = std::chrono::steady_clock;

  Attempt(boost::asio::io_context& io, int round)
      : number(round), news(io.get_executor()), explanation(io), end_spreads(io) {}

  int number;  ///< of its first round, and in the names of its files
  Clock::time_point started_at = Clock::now();
  Clock::time_point learned_at = started_at;  ///< time at which the attempt's end was known
  report::KernelFacts kernel;
  std::optional<monitor::RankMonitor> rank_monitor;  ///< empty: nobody can watch the job
  std::optional<MembershipPage> membership;          ///< empty: workers have no peers
  std::vector<supervision::WorkerSpec> specs;        ///< by worker of this machine
  std::optional<supervision::Supervisor>
      supervisor;         ///< empty if the attempt ended before workers started
  rendezvous::Gate news;  ///< opens when the workers have ended, or a round is to be renewed
  std::optional<supervision::AttemptOutcome> outcome;  ///< set when the workers have ended
  std::exception_ptr fault;                            ///< of starting them
  /// Workers of the round are lost, and those of this machine that run are kept for the next one.
  bool is_renewed = false;
  /// Result of the last round, if this machine has settled it while its workers ran: the job ends,
  /// or `round_` is the next round, which begins with new workers.
  std::optional<rendezvous::RoundResult> result;
  bool gave_up = false;             ///< some workers could not be killed
  std::vector<std::string> stacks;  ///< lines, if the workers were looked into
  report::InterimReports interim;   ///< to find the cause of a failure
  std::optional<supervision::WorkerRecord>
      unexplained;                        ///< delayed first failure that a signal may explain
  boost::asio::steady_timer explanation;  ///< time limit for that signal to arrive
  /// Signal for the workers, sent when the other machines know of the end.
  std::optional<supervision::PassedSignal> signal_to_workers;
  boost::asio::steady_timer end_spreads;  ///< time limit for that
};

/// A job on this machine. job.cpp has its life cycle from the first round to the last message,
/// job_events.cpp the events that may interrupt it, by the table in job_table.hpp. Not thread-safe:
/// everything runs on the event loop's thread.
class Job {
 public:
  Job(const LaunchPlan& plan, const settings::Environment& environment, supervision::Guard guard,
      std::chrono::steady_clock::time_point begun);
  /// Runs the job and returns the exit status for the shell. May exit the process instead.
  int run();

 private:
  // Life cycle (job.cpp).
  boost::asio::awaitable<void> work();
  boost::asio::awaitable<void> flush_output();
  boost::asio::awaitable<bool> join_round();
  boost::asio::awaitable<void> wait_if_leaving();
  boost::asio::awaitable<void> prepare_fork_server();
  boost::asio::awaitable<void> fork_workers(int count);
  boost::asio::awaitable<void> fork_replacements();
  boost::asio::awaitable<void> run_attempts();
  boost::asio::awaitable<bool> run_attempt();
  boost::asio::awaitable<supervision::AttemptOutcome> run_workers();
  supervision::Supervisor::Options supervisor_options();
  boost::asio::awaitable<supervision::AttemptOutcome> await_workers();
  boost::asio::awaitable<void> renew_round();
  boost::asio::awaitable<std::optional<rendezvous::Round>> exchange_round();
  void begin_epoch(const rendezvous::Round& before);
  boost::asio::awaitable<rendezvous::RoundResult> settle(
      const supervision::AttemptOutcome& outcome);
  void report_lost_machines(const rendezvous::RoundResult& round_result);
  boost::asio::awaitable<bool> go_on(const report::JobReport& report);
  boost::asio::awaitable<bool> begin_attempt(int restarts_before);
  void end_without_round();
  boost::asio::awaitable<void> leave_while_joining();
  boost::asio::awaitable<void> part_from_machines();
  void close();
  [[noreturn]] void leave_at_once();
  bool gave_up() const { return attempt_ && attempt_->gave_up; }

  // Events (job_events.cpp).
  JobAction advance(JobEvent event);
  boost::asio::awaitable<void> end_without_guard();
  void on_signal(supervision::PassedSignal signal, bool is_said = false);
  void listen_to_remote_launcher();
  void on_control_message(const remote_launch::control::Message& message);
  void on_remote_launcher_lost(const std::string& reason);
  report::AttemptEvidence evidence();
  void on_first_failure(const supervision::WorkerRecord& worker);
  void announce_failure(const supervision::WorkerRecord& worker);
  void wait_for_own_signal(const supervision::WorkerRecord& worker);
  bool forget_unexplained();
  boost::asio::awaitable<void> first_failure_is_explained();
  bool was_ended_by_terminal(const supervision::WorkerRecord& worker) const;
  void on_force_stop();
  void on_lost(const output::Lost& lost);
  void on_fault(const std::exception& error);
  void on_attempt_end(const rendezvous::AttemptEnd& end);
  void follow(const rendezvous::AttemptEnd& end);
  bool keeps_workers(const rendezvous::AttemptEnd& end) const;
  bool changes_machines(const rendezvous::AttemptEnd& end) const;
  void begin_renewal(bool is_anyone_lost);
  void stop(JobEvent event, const StopRequest& request);
  void stop_workers_when_known(supervision::PassedSignal signal);
  void stop_workers();
  void end_replacement();
  void stop_in_time();
  boost::asio::awaitable<void> end_after_time_limit();
  boost::asio::awaitable<void> look_inside();
  boost::asio::awaitable<void> await_torch_records();
  void dump_records();

  output::OutputMux::Options output_options();
  void show_status(int running);
  void show_unwritable(output::WorkerTargets& targets);
  void monitor_workers(std::vector<supervision::WorkerSpec>& specs);
  void show_report(const report::JobReport& report, const rendezvous::RoundResult& round_result);
  std::vector<supervision::WorkerSpec> worker_specs();
  std::vector<supervision::WorkerSpec> renewed_specs();
  rendezvous::AttemptEnd own_end() const;
  void give_snapshot_memory(std::vector<supervision::WorkerSpec>& specs);
  void give_membership(std::vector<supervision::WorkerSpec>& specs);
  bool is_replaced(const supervision::WorkerRecord& worker);
  bool have_rejoined(const std::vector<supervision::WorkerRecord>& workers) const;
  void on_rejoined(bool rejoined);
  report::JobReport report_of(const rendezvous::RoundResult& round_result);
  void publish(report::JobReport report, const rendezvous::RoundResult& round_result);
  void leave_file(const std::string& path, const std::string& text);
  void note_phases(const supervision::AttemptOutcome& outcome);
  void write_phases();
  void say_who_is_here();
  int exit_status() const {
    return plan_.supervision.keeps_exit_status ? status_ : std::min(status_, 1);
  }

  /// Prints a line of the launcher about this machine to stderr. It is not mixed with a worker's
  /// line.
  void say(const std::string& line, LogLevel level = LogLevel::warn) {
    notice(Component::launcher, level, line_head(plan_, host_), line);
  }
  /// Prints a line about the whole job. If a job manager merges the output of all machines, only
  /// one machine prints it.
  void announce(const std::string& line, LogLevel level = LogLevel::warn);

  const LaunchPlan& plan_;
  const settings::Environment& environment_;
  const std::string host_;
  const bool alone_;  ///< the job has a single worker
  const supervision::JobControl job_control_;
  supervision::Runner runner_;
  std::optional<Control> control_;  ///< set if another acclaunch started this launcher
  LogFolder logs_;
  bool has_run_ = false;                                ///< an attempt has ended
  std::optional<supervision::ForkServer> fork_server_;  ///< set if the plan has modules to preload
  std::vector<UniqueFd> snapshot_memories_;  ///< by worker of this machine; empty: none are wanted
  std::unique_ptr<Rounds> rounds_;
  std::optional<rendezvous::Round> round_;  ///< the current or last round
  std::optional<Attempt> attempt_;          ///< the current or last attempt
  const std::chrono::steady_clock::time_point started_at_ = std::chrono::steady_clock::now();
  Phases phases_;
  boost::asio::steady_timer time_limit_;
  boost::asio::steady_timer pause_;
  RestartPauses pauses_;
  JobState state_ = JobState::starting;
  std::optional<StopRequest> stop_;  ///< the first stop request; set in the states that have one
  int num_dumps_ = 0;                ///< of the last collectives, asked for by SIGUSR2
  int status_ = 0;                   ///< exit status so far
};

}  // namespace acc::launcher::job
