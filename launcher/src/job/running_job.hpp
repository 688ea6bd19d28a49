#pragma once

#include "acc/base/text.hpp"
#include "job/account.hpp"
#include "job/control.hpp"
#include "job/log_folder.hpp"
#include "job/restart_pauses.hpp"
#include "job/rounds.hpp"
#include "job/speaker.hpp"
#include "output/output_mux.hpp"
#include "report/job_report.hpp"
#include "report/kernel_facts.hpp"
#include "supervision/descriptors.hpp"
#include "supervision/guardian.hpp"
#include "supervision/signal_watch.hpp"
#include "supervision/supervisor.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// Somebody wants the end of the job.
struct StopRequest {
  int exit_status;
  PassedSignal signal;  ///< that the workers get
  std::string reason;
  bool insists;  ///< a second one of these kills
  rendezvous::AttemptEnd::Cause cause = rendezvous::AttemptEnd::Cause::stop;
  bool is_said = false;  ///< by the starter, where this machine's lines go as well
};

/// A job on this machine: its way from the first round to the last message is in job.cpp, what may
/// happen on that way in job_events.cpp. The loop's thread only.
class Job {
 public:
  Job(const LaunchPlan& plan, const plugins::Environment& environment, Guard guard);
  int run();

 private:
  // The way of a job.
  boost::asio::awaitable<void> work();
  boost::asio::awaitable<void> flush_output();
  boost::asio::awaitable<bool> join_round();
  boost::asio::awaitable<void> run_attempts();
  boost::asio::awaitable<bool> run_attempt();
  boost::asio::awaitable<AttemptOutcome> run_workers();
  boost::asio::awaitable<rendezvous::Settlement> settle(const AttemptOutcome& outcome);
  void tell_starter_of_lost(const rendezvous::Settlement& settlement);
  boost::asio::awaitable<bool> go_on(const JobReport& report);
  boost::asio::awaitable<void> leave_while_joining();
  boost::asio::awaitable<void> part_from_machines();
  void close();
  [[noreturn]] void leave_at_once();

  // What may happen on it.
  boost::asio::awaitable<void> watch_guard();
  void on_signal(PassedSignal signal, bool is_said = false);
  void listen_to_starter();
  void on_starter(const control::Message& message);
  void on_starter_lost(const std::string& reason);
  AttemptEvidence evidence() const;
  std::optional<std::size_t> find_cause(const std::vector<WorkerRecord>& workers, bool is_last);
  void on_first_failure(const WorkerRecord& worker);
  void announce_failure(const WorkerRecord& worker);
  void wait_for_own_signal(const WorkerRecord& worker);
  bool forget_unexplained();
  boost::asio::awaitable<void> first_failure_is_explained();
  bool was_ended_by_terminal(const WorkerRecord& worker) const;
  void on_insist();
  void on_lost(const Lost& lost);
  void on_fault(const std::exception& error);
  void on_attempt_end(const rendezvous::AttemptEnd& end);
  void stop(const StopRequest& request);
  void stop_workers_when_known(PassedSignal signal);
  void stop_workers();
  void stop_outside_of_attempt(const StopRequest& request, bool insists);
  bool ends_by_a_fault() const;
  void stop_in_time();

  OutputMux::Options output_options(pid_t process_group);
  void show_status(int running);
  std::vector<WorkerSpec> worker_specs() const;
  JobReport report_of(const rendezvous::Settlement& settlement);
  void publish(JobReport report, const rendezvous::Settlement& settlement);
  void leave_file(const std::string& path, const std::string& text);
  void say_who_is_here();
  int exit_status() const { return plan_.keeps_exit_status ? status_ : std::min(status_, 1); }

  /// What a request to stop finds.
  enum class Phase {
    idle,      ///< nothing is there yet, or only the last messages are outstanding
    joining,   ///< a round: the other machines count on this one
    running,   ///< the workers
    settling,  ///< the machines say how an attempt ended, and decide what follows
  };

  /// One line of the launcher's own on stderr, whole among the workers' lines: of this machine.
  void say(const std::string& line) {
    output_.write_stderr(printable(line_head(plan_, host_) + line) + "\n");
  }
  /// Likewise, of the job: where all machines print to one place, one of them says it.
  void announce(const std::string& line);

  const LaunchPlan& plan_;
  const plugins::Environment& environment_;
  const std::string host_;
  const bool alone_;  ///< one worker in all
  DescriptorLimit descriptors_;
  boost::asio::io_context io_{1};
  Remains remains_;
  boost::asio::posix::stream_descriptor alive_;
  const JobControl job_control_;
  SignalWatch signals_;
  std::optional<Control> control_;  ///< where this launcher was started by another one
  OutputMux output_;
  LogFolder logs_;
  std::unique_ptr<Rounds> rounds_;
  std::optional<rendezvous::Round> round_;  ///< the one that runs, or ran last
  std::optional<KernelFacts> kernel_;
  std::optional<Supervisor> supervisor_;
  const std::chrono::steady_clock::time_point started_at_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point attempt_started_at_;
  boost::asio::steady_timer time_limit_;
  boost::asio::steady_timer pause_;
  RestartPauses pauses_;
  std::vector<WorkerReport> interim_;        ///< of the workers, while the cause is looked for
  std::optional<WorkerRecord> unexplained_;  ///< the first failure, that a signal may explain
  boost::asio::steady_timer explanation_;    ///< the time for that signal to come
  std::chrono::steady_clock::time_point learned_at_;  ///< of the end of the attempt
  Phase phase_ = Phase::idle;
  std::optional<PassedSignal> signal_to_workers_;  ///< that they get when the end is known everywhere
  boost::asio::steady_timer end_spreads_;
  bool expects_interrupt_ = false;  ///< by which the leader has ended: the launcher gets it as well
  bool stopping_ = false;           ///< the attempt's workers are being ended
  bool gave_up_ = false;
  std::exception_ptr fault_;         ///< this launcher cannot go on
  std::optional<StopRequest> stop_;  ///< the first one
  int status_ = 0;
};

}  // namespace acc::launcher
