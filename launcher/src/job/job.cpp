#include "job/job.hpp"

#include "acc/base/atomic_file.hpp"
#include "host/own_variables.hpp"
#include "job/running_job.hpp"
#include "output/line_prefix.hpp"
#include "report/error_file.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;
using rendezvous::AttemptEnd;
using rendezvous::Settlement;
using Cause = AttemptEnd::Cause;

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

}  // namespace

Job::Job(const LaunchPlan& plan, const plugins::Environment& environment, Guard guard)
    : plan_(plan),
      environment_(environment),
      host_(host_name()),
      alone_(plan.local_world_size == 1 &&
             (plan.num_machines == 1 || plan.identity == Identity::none)),
      remains_(std::move(guard.remains)),
      alive_(io_, guard.alive.release()),
      signals_(io_.get_executor(), [this](int signal) { on_signal(signal); }),
      output_(io_.get_executor(), output_options(guard.process_group)),
      logs_(plan.output, plan.identity == Identity::none ? 0 : plan.local_world_size),
      meeting_(io_, plan, host_, [this](const std::string& line) { say(line); }),
      time_limit_(io_),
      pause_(io_),
      pauses_(plan.restart_backoff) {}

int Job::run() {
  asio::co_spawn(io_, watch_guard(), asio::detached);
  asio::co_spawn(io_, work(), [this](const std::exception_ptr& error) {
    close();
    if (error) {
      std::rethrow_exception(error);
    }
  });
  io_.run();
  if (gave_up_ || stop_) {
    leave_at_once();
  }
  return exit_status();
}

/// The usual way out would wait for those that cannot be killed, and for a host's name that is
/// being looked up.
void Job::leave_at_once() {
  output_.hide_status();
  logs_.remove();
  std::_Exit(exit_status());
}

asio::awaitable<void> Job::work() {
  for (const std::string& notice : plan_.notices) {
    say(notice);
  }
  remains_.add_folder(logs_.scratch());
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
  time_limit_.cancel();
  if (peers_) {
    co_await part_from_machines();
  }
  if (fault) {
    std::rethrow_exception(fault);
  }
  co_await flush_output();
  if (gave_up_) {
    leave_at_once();
  }
}

/// A job that was told to end waits no longer for a reader than for a worker.
asio::awaitable<void> Job::flush_output() {
  asio::steady_timer patience(io_, plan_.shutdown_timeout);
  if (stop_) {
    patience.async_wait([this](const boost::system::error_code& error) {
      if (!error) {
        io_.stop();
      }
    });
  }
  co_await output_.flushed();
}

/// False where a request to stop came before the workers.
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
  peers_->watch([this](const AttemptEnd& end) { on_attempt_end(end); }, [this] { on_insist(); });
  if (stop_) {
    peers_->announce(stop_->cause, stop_->exit_status, stop_->reason);
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
  stop_in_time();
  bool again = true;
  while (again) {
    again = co_await run_attempt();
  }
}

asio::awaitable<bool> Job::run_attempt() {
  const JobOutcome outcome = co_await run_workers();
  gave_up_ = outcome.gave_up;
  for (const std::string& process : outcome.left_behind) {
    say("cannot be killed: " + process);
  }
  phase_ = Phase::settling;
  output_.drain();
  const Settlement settlement = co_await settle(outcome);
  const JobReport report = report_of(outcome, settlement);
  status_ = report.exit_status;
  publish(report);
  bool again = report.restarts_after.has_value();
  if (again) {
    again = co_await restart(*report.restarts_after);
  }
  phase_ = Phase::idle;
  co_return again;
}

asio::awaitable<JobOutcome> Job::run_workers() {
  attempt_started_at_ = std::chrono::steady_clock::now();
  kernel_.emplace();
  if (peers_ && peers_->has_ended(attempt_)) {
    co_return JobOutcome{};  // on another machine, before it began here
  }
  Supervisor::Options options;
  options.shutdown_timeout = plan_.shutdown_timeout;
  options.stuck_timeout = plan_.stuck_timeout;
  options.surroundings.cgroup = &remains_.cgroup();
  options.surroundings.descriptors = descriptors_.original();
  options.other_descriptors = store_clients();
  options.on_running = [this](int running) { show_status(running); };
  options.on_first_failure = [this](const WorkerRecord& worker) { on_first_failure(worker); };
  supervisor_.emplace(io_.get_executor(), output_, std::move(options));
  phase_ = Phase::running;
  logs_.keep();
  JobOutcome outcome = co_await supervisor_->run(worker_specs());
  co_return outcome;
}

OutputMux::Options Job::output_options(pid_t process_group) {
  OutputMux::Options options;
  options.folds_lines = plan_.output.folds_lines;
  options.status_line = plan_.output.status_line;
  options.foreground_group = process_group;
  if (plan_.identity !=
      Identity::none) {  // else the program sees by itself that its reader is gone
    options.on_lost = [this](const Lost& lost) { on_lost(lost); };
  }
  return options;
}

void Job::show_status(int running) {
  output_.set_status({running, plan_.local_world_size, attempt_, started_at_});
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
    if (!alone_ || !plan_.output.line_prefix.empty()) {
      spec.prefix = line_prefix(plan_.output.line_prefix,
                                {plan_.role, spec.rank, local_rank, host_}, plan_.num_machines);
    }
    const Placement& placement = plan_.placements[static_cast<std::size_t>(local_rank)];
    spec.cores = placement.cpus;
    spec.numa_node = placement.numa_node;
  }
  return specs;
}

/// Connections of workers and launchers to the store that is served here.
std::size_t Job::store_clients() const {
  if (meeting_.machine_rank() != 0 || plan_.identity == Identity::none) {
    return 0;
  }
  const Assignment assignment = meeting_.assignment(attempt_);
  return static_cast<std::size_t>(assignment.world_size +
                                  Peers::kConnections * assignment.num_machines);
}

/// Says how the workers of this machine ended, and hears it of the others.
asio::awaitable<Settlement> Job::settle(const JobOutcome& outcome) {
  AttemptEvidence evidence{.attempt = attempt_,
                           .machine_rank = meeting_.machine_rank(),
                           .host = host_,
                           .working_directory = plan_.working_directory,
                           .learned_at = attempt_started_at_,
                           .started_at = attempt_started_at_,
                           .logs = logs_,
                           .output = output_,
                           .kernel = *kernel_};
  if (!peers_) {
    Settlement settlement;
    settlement.reports.push_back(encode(machine_report(outcome, evidence)));
    co_return settlement;
  }
  if (outcome.gave_up) {
    peers_->announce(Cause::other, 1, "some workers on " + host_ + " could not be killed");
  }
  co_await peers_->announced();
  evidence.learned_at = peers_->learned_at(attempt_);
  co_return co_await peers_->settle(encode(machine_report(outcome, evidence)));
}

JobReport Job::report_of(const JobOutcome& outcome, const Settlement& settlement) {
  JobReport report = job_report(settlement.reports, machine_names());
  report.command = plan_.command;
  report.run_id = plan_.rendezvous.run_id;
  report.attempt = attempt_;
  report.max_restarts = plan_.max_restarts;
  bool restarts = restarting_ && !outcome.gave_up;
  std::optional<AttemptEnd> end;
  if (peers_) {
    end = settlement.end ? settlement.end : peers_->end();
    restarts = settlement.end && settlement.end->restarts && !peers_->end();
  }
  if (ended_by_terminal_) {
    report.first_failure.reset();
  }
  if (end && end->cause != Cause::worker) {
    report.first_failure.reset();
    report.reason = end->cause == Cause::other ? end->reason : "";
  }
  if (!peers_ && !report.first_failure && stop_ && stop_->cause == Cause::other) {
    report.reason = stop_->reason;
  }
  report.exit_status = status_of(report, end);
  if (report.first_failure) {
    const WorkerReport& worker = report.workers[*report.first_failure];
    report.command = worker_command(plan_, worker.local_rank);
    if (restarts) {
      report.restarts_after = pauses_.next(worker.ran_for);
    }
  }
  return report;
}

/// A worker's failure counts as it was; else the end that all machines know, or the request to
/// stop.
int Job::status_of(const JobReport& report, const std::optional<AttemptEnd>& end) const {
  if (report.first_failure) {
    return report.workers[*report.first_failure].exit_status();
  }
  if (end) {
    return end->exit_status;
  }
  return stop_ ? stop_->exit_status : 0;
}

std::vector<std::string> Job::machine_names() const {
  if (!peers_) {
    return {host_};
  }
  std::vector<std::string> names;
  for (const rendezvous::Machine& machine : meeting_.machines()) {
    names.push_back(peers_->name_of(machine.machine_rank));
  }
  return names;
}

void Job::publish(JobReport report) {
  if (gave_up_) {
    say("some processes could not be killed and are still there");
  }
  if (!report.first_failure && report.reason.empty()) {
    return;
  }
  report.log_folder = logs_.kept_folder(attempt_);
  report.report_file = logs_.report_file(attempt_);
  output_.write_stderr(format_report(report));
  if (!report.report_file.empty()) {
    leave_file(report.report_file, report_json(report));
  }
  const std::string own_file = value_of(environment_, variables::error_file);
  if (!own_file.empty() && report.first_failure && !report.restarts_after) {
    const WorkerReport& worker = report.workers[*report.first_failure];
    const bool is_here = worker.machine_rank == meeting_.machine_rank();
    const std::string file = is_here ? logs_.error_file(attempt_, worker.local_rank) : "";
    leave_file(own_file, root_cause_file(worker, read_error_file(file).text));
  }
}

void Job::leave_file(const std::string& path, const std::string& text) {
  try {
    write_file(path, text, Overwrite::yes);
  } catch (const Error& error) {
    say(error.what());
  }
}

asio::awaitable<bool> Job::restart(std::chrono::milliseconds pause) {
  if (!stop_ && !(peers_ && peers_->end())) {
    pause_.expires_after(pause);
    co_await pause_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  bool again = !stop_;
  if (peers_) {
    co_await peers_->announced();
    again = co_await peers_->restart();
  } else if (again && plan_.rendezvous.backend != RendezvousPlan::Backend::none) {
    meeting_.forget_workers();
  }
  if (!again) {
    status_ = stop_ ? stop_->exit_status : status_;
    co_return false;
  }
  ++attempt_;
  stopping_ = false;
  restarting_ = false;
  logs_.open_attempt(attempt_);
  say("restart " + std::to_string(attempt_) + " of " + std::to_string(plan_.max_restarts));
  co_return true;
}

asio::awaitable<void> Job::part_from_machines() {
  const std::optional<AttemptEnd> end = co_await peers_->finish();
  if (!end) {
    co_return;
  }
  if (end->cause != Cause::worker || status_ == 0) {
    status_ = end->exit_status;
  }
  if (end->machine_rank != meeting_.machine_rank() && !knows_why_) {
    say("the job ended first on " + peers_->name_of(end->machine_rank) + ": " + end->reason);
  }
}

void Job::close() {
  meeting_.close(plan_.num_machines > 1);  // the other machines may take their last answers
  signals_.close();
  alive_.close();
}

int run_job(const LaunchPlan& plan, const plugins::Environment& environment, Guard guard) {
  return Job(plan, environment, std::move(guard)).run();
}

}  // namespace acc::launcher
