#include "job/job.hpp"

#include "acc/base/error.hpp"
#include "job/log_folder.hpp"
#include "job/meeting.hpp"
#include "job/peers.hpp"
#include "output/line_prefix.hpp"
#include "output/output_mux.hpp"
#include "report/error_file.hpp"
#include "report/job_report.hpp"
#include "supervision/descendants.hpp"
#include "supervision/signals.hpp"
#include "supervision/supervisor.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <sys/signalfd.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;
using rendezvous::AttemptEnd;

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

class Job {
 public:
  Job(const LaunchPlan& plan, const plugins::Environment& environment, UniqueFd guardian);
  int run();

 private:
  asio::awaitable<void> work();
  asio::awaitable<void> watch_signals();
  asio::awaitable<void> watch_guardian();

  asio::awaitable<bool> meet();
  asio::awaitable<void> tie_to_machines();
  asio::awaitable<void> leave_meeting();
  asio::awaitable<void> run_attempts();
  asio::awaitable<bool> run_attempt();
  std::vector<WorkerSpec> worker_specs() const;
  asio::awaitable<JobOutcome> run_workers();
  asio::awaitable<bool> await_restart(const JobOutcome& outcome);
  void on_stop_signal(int signal);
  void on_first_failure(const WorkerRecord& worker);
  void on_fault(const std::exception& error);
  void on_attempt_end(const AttemptEnd& end);
  void report(const JobOutcome& outcome);
  WorkerReport report_of(const WorkerRecord& worker);
  asio::awaitable<void> part_from_machines();
  void close();
  int exit_status() const { return plan_.keeps_exit_status ? status_ : std::min(status_, 1); }

  /// What a stop signal finds.
  enum class Phase {
    idle,      ///< nothing is there yet, or only the last messages are outstanding
    meeting,   ///< the other machines count on this one
    leaving,   ///< they are being told that they should not
    tying,     ///< all have met; nobody can be told yet
    running,   ///< the workers
    settling,  ///< the machines decide what follows on an attempt
  };

  /// One line of the launcher's own on stderr, whole among the workers' lines.
  void say(const std::string& line) { output_.write_stderr("acclaunch: " + line + "\n"); }

  const LaunchPlan& plan_;
  const plugins::Environment& environment_;
  const std::string host_ = host_name();
  const bool alone_;  ///< one worker in all
  asio::io_context io_{1};
  asio::posix::stream_descriptor guardian_;
  asio::posix::stream_descriptor signals_;
  OutputMux output_;
  LogFolder logs_;
  Meeting meeting_;
  std::optional<Peers> peers_;
  std::optional<Supervisor> supervisor_;
  int attempt_ = 0;
  Phase phase_ = Phase::idle;
  bool stopping_ = false;    ///< the attempt's workers are being ended
  bool restarting_ = false;  ///< and will be started again
  bool gave_up_ = false;
  bool knows_why_ = false;  ///< the user, where another machine ended the job
  int status_ = 0;
};

Job::Job(const LaunchPlan& plan, const plugins::Environment& environment, UniqueFd guardian)
    : plan_(plan),
      environment_(environment),
      alone_(plan.local_world_size == 1 &&
             (plan.num_machines == 1 || plan.identity == Identity::none)),
      guardian_(io_, guardian.release()),
      signals_(io_),
      output_(io_.get_executor(), {}),
      logs_(plan.output, plan.identity == Identity::none ? 0 : plan.local_world_size),
      meeting_(io_, plan, host_, [this](const std::string& line) { say(line); }) {
  const sigset_t signals = handled_signals();
  signals_.assign(::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
}

int Job::run() {
  asio::co_spawn(io_, watch_guardian(), asio::detached);
  asio::co_spawn(io_, watch_signals(), asio::detached);
  asio::co_spawn(io_, work(), [this](const std::exception_ptr& error) {
    close();
    if (error) {
      std::rethrow_exception(error);
    }
  });
  io_.run();
  return exit_status();
}

asio::awaitable<void> Job::work() {
  for (const std::string& notice : plan_.notices) {
    say(notice);
  }
  leave_to_guardian(guardian_.native_handle(), logs_.scratch());
  logs_.open_attempt(0);  // before others are kept waiting for a machine that cannot start
  const bool begins = co_await meet();
  std::exception_ptr fault;
  try {
    if (begins) {
      co_await run_attempts();
    }
  } catch (const std::exception& error) {
    fault = std::current_exception();
    on_fault(error);
  }
  if (peers_) {
    co_await part_from_machines();
  }
  if (fault) {
    std::rethrow_exception(fault);
  }
  co_await output_.flushed();
  if (gave_up_) {
    logs_.remove();
    std::_Exit(exit_status());  // the usual way out would wait for those that cannot be killed
  }
}

/// False where a stop signal came before the workers.
asio::awaitable<bool> Job::meet() {
  phase_ = Phase::meeting;
  co_await meeting_.take_place();
  const bool left = std::exchange(phase_, Phase::tying) == Phase::leaving;
  if (meeting_.machines().size() > 1) {
    co_await tie_to_machines();
  }
  co_return std::exchange(phase_, Phase::idle) == Phase::tying && !left;
}

asio::awaitable<void> Job::tie_to_machines() {
  peers_.emplace(io_.get_executor(), plan_, meeting_);
  co_await peers_->connect();
  peers_->watch([this](const AttemptEnd& end) { on_attempt_end(end); });
  if (status_ != 0) {
    peers_->announce(status_, "stopped by " + signal_name(status_ - 128));
  }
}

asio::awaitable<void> Job::leave_meeting() {
  phase_ = Phase::leaving;
  const bool left = co_await meeting_.leave();
  if (left) {
    io_.stop();
  }  // else the job has formed in the meantime: meet() goes on, and tells its machines
}

asio::awaitable<void> Job::run_attempts() {
  bool again = true;
  while (again) {
    again = co_await run_attempt();
  }
}

asio::awaitable<bool> Job::run_attempt() {
  const JobOutcome outcome = co_await run_workers();
  status_ = outcome.exit_status();
  gave_up_ = outcome.gave_up;
  phase_ = peers_ ? Phase::settling : Phase::idle;
  output_.drain();
  report(outcome);
  const bool again = co_await await_restart(outcome);
  phase_ = Phase::idle;
  if (again) {
    ++attempt_;
    stopping_ = false;
    restarting_ = false;
    logs_.open_attempt(attempt_);
    say("restart " + std::to_string(attempt_) + " of " + std::to_string(plan_.max_restarts));
  }
  co_return again;
}

asio::awaitable<bool> Job::await_restart(const JobOutcome& outcome) {
  if (!peers_) {
    const bool again = restarting_ && !outcome.gave_up;
    if (again && plan_.rendezvous.backend != RendezvousPlan::Backend::none) {
      meeting_.forget_workers();
    }
    co_return again;
  }
  if (outcome.gave_up) {
    peers_->announce(1, "some workers on " + host_ + " could not be killed");
  }
  co_return co_await peers_->await_restart();
}

asio::awaitable<void> Job::watch_guardian() {
  co_await guardian_.async_wait(asio::posix::stream_descriptor::wait_read,
                                asio::as_tuple(asio::use_awaitable));
  if (!guardian_.is_open()) {
    co_return;  // the job is over
  }
  if (peers_) {
    peers_->announce(128 + SIGKILL, "acclaunch on " + host_ + " is gone");
  } else if (phase_ == Phase::meeting) {
    asio::co_spawn(io_, meeting_.leave(), asio::detached);
  }
  end_descendants();
  if (peers_ || phase_ == Phase::meeting) {  // time for that one message
    asio::steady_timer moment(io_, std::chrono::milliseconds(500));
    co_await moment.async_wait(asio::use_awaitable);
    end_descendants();  // work() may have started workers in that moment
  }
  logs_.remove();
  ::_exit(128 + SIGKILL);
}

asio::awaitable<void> Job::watch_signals() {
  for (;;) {
    co_await signals_.async_wait(asio::posix::stream_descriptor::wait_read,
                                 asio::as_tuple(asio::use_awaitable));
    if (!signals_.is_open()) {
      co_return;
    }
    signalfd_siginfo info{};
    while (::read(signals_.native_handle(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (is_stop_signal(signal) || std::ranges::count(plan_.stop_signals, signal) > 0) {
        on_stop_signal(signal);
      } else if (phase_ == Phase::running && (signal == SIGCHLD || !is_own_signal(signal))) {
        supervisor_->on_signal(signal);
      }
    }
  }
}

void Job::on_stop_signal(int signal) {
  if (peers_ && phase_ != Phase::tying) {
    peers_->announce(128 + signal, "stopped by " + signal_name(signal));
  }
  restarting_ = false;
  if (phase_ != Phase::running) {
    status_ = 128 + signal;
    switch (phase_) {
      case Phase::meeting: asio::co_spawn(io_, leave_meeting(), asio::detached); return;
      case Phase::tying:
      case Phase::settling: phase_ = Phase::idle; return;  // work() goes on, and sees it
      default: io_.stop(); return;
    }
  }
  say(signal_name(signal) + (std::exchange(stopping_, true) ? " while ending: killing the workers"
                                                            : ": ending the workers"));
  supervisor_->stop(signal);
}

std::vector<WorkerSpec> Job::worker_specs() const {
  const Assignment assignment = meeting_.assignment(attempt_);
  std::vector<WorkerSpec> specs;
  for (int local_rank = 0; local_rank < plan_.local_world_size; ++local_rank) {
    WorkerSpec& spec = specs.emplace_back();
    spec.rank = assignment.first_rank + local_rank;
    spec.local_rank = local_rank;
    spec.command = worker_command(plan_, local_rank);
    spec.environment = worker_environment(plan_, assignment, environment_, local_rank);
    spec.working_directory = plan_.working_directory;
    spec.inherits_stdin = alone_;
    spec.inherits_output = plan_.identity == Identity::none;
    spec.targets = logs_.targets(attempt_, local_rank);
    if (!alone_) {
      spec.prefix = line_prefix(plan_.output.line_prefix,
                                {plan_.role, spec.rank, local_rank, host_}, plan_.num_machines);
    }
    const Placement& placement = plan_.placements[static_cast<std::size_t>(local_rank)];
    spec.cores = placement.cpus;
    spec.numa_node = placement.numa_node;
  }
  return specs;
}

asio::awaitable<JobOutcome> Job::run_workers() {
  if (peers_ && peers_->has_ended(attempt_)) {
    co_return JobOutcome{};  // on another machine, before it began here
  }
  Supervisor::Options options;
  options.shutdown_timeout = plan_.shutdown_timeout;
  options.on_first_failure = [this](const WorkerRecord& worker) { on_first_failure(worker); };
  supervisor_.emplace(io_.get_executor(), output_, std::move(options));
  phase_ = Phase::running;
  logs_.keep();
  JobOutcome outcome = co_await supervisor_->run(worker_specs());
  co_return outcome;
}

void Job::on_first_failure(const WorkerRecord& worker) {
  stopping_ = true;
  restarting_ = attempt_ < plan_.max_restarts && worker.end->kind != ProcessEnd::Kind::not_executed;
  const std::string line = failure_line(worker, host_);
  if (plan_.local_world_size > 1) {
    say(line + "; ending the others");
  }
  if (peers_) {
    peers_->announce(worker.end->shell_status(), line, restarting_);
  }
}

/// A launcher that cannot go on ends the job on all machines.
void Job::on_fault(const std::exception& error) {
  phase_ = Phase::idle;
  supervisor_.reset();
  if (peers_) {
    const auto* known = dynamic_cast<const Error*>(&error);
    peers_->announce(known != nullptr ? acc::exit_status(*known) : 1,
                     "acclaunch on " + host_ + ": " + error.what());
  }
}

void Job::on_attempt_end(const AttemptEnd& end) {
  if (end.machine_rank != meeting_.machine_rank()) {
    knows_why_ = !end.restarts;
    say(peers_->name_of(end.machine_rank) +
        (end.restarts ? " ended the attempt: " : " ended the job: ") + end.reason);
  }
  stopping_ = true;
  if (phase_ == Phase::running) {
    supervisor_->on_peer_failure();
  }
}

void Job::report(const JobOutcome& outcome) {
  if (outcome.gave_up) {
    say("some workers could not be killed and are still there");
  }
  if (!outcome.first_failure) {
    return;
  }
  JobReport failure;
  failure.command = plan_.command;
  failure.run_id = plan_.rendezvous.run_id;
  failure.attempt = attempt_;
  failure.max_restarts = plan_.max_restarts;
  if (restarting_ && !outcome.gave_up) {
    failure.restarts_after = std::chrono::milliseconds(0);
  }
  failure.exit_status = outcome.exit_status();
  for (const WorkerRecord& worker : outcome.workers) {
    failure.workers.push_back(report_of(worker));
  }
  failure.first_failure = outcome.first_failure;
  output_.write_stderr(format_report(failure));
}

WorkerReport Job::report_of(const WorkerRecord& worker) {
  WorkerReport report{.rank = worker.rank,
                      .local_rank = worker.local_rank,
                      .machine_rank = meeting_.machine_rank(),
                      .host = host_,
                      .pid = worker.pid,
                      .end = worker.end,
                      .told_to_end = worker.told_to_end,
                      .ended_at = worker.ended_at,
                      .last_stderr_lines = output_.last_stderr_lines(worker.rank)};
  report.error_message = read_error_file(logs_.error_file(attempt_, worker.local_rank)).message;
  return report;
}

asio::awaitable<void> Job::part_from_machines() {
  const std::optional<AttemptEnd> end = co_await peers_->finish();
  if (!end) {
    co_return;
  }
  status_ = end->exit_status;
  if (end->machine_rank != meeting_.machine_rank() && !knows_why_) {
    say("the job ended first on " + peers_->name_of(end->machine_rank) + ": " + end->reason);
  }
}

void Job::close() {
  meeting_.close(plan_.num_machines > 1);  // the other machines may take their last answers
  signals_.close();
  guardian_.close();
}

}  // namespace

int run_job(const LaunchPlan& plan, const plugins::Environment& environment, UniqueFd guardian) {
  return Job(plan, environment, std::move(guardian)).run();
}

}  // namespace acc::launcher
