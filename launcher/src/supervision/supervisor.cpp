// SPDX-License-Identifier: Apache-2.0
#include "supervision/supervisor.hpp"

#include "acc/base/log.hpp"
#include "supervision/descendants.hpp"
#include "supervision/descriptors.hpp"
#include "supervision/fork_server.hpp"

#include <boost/asio/co_spawn.hpp>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>

namespace acc::launcher::supervision {
namespace asio = boost::asio;

namespace {

/// Completion handler of a detached coroutine: passes its exception on to io_context::run().
void rethrow(const std::exception_ptr& error) {
  if (error) {
    std::rethrow_exception(error);
  }
}

// Bounds of the time that processes left behind by workers have to die of SIGKILL. Within these it
// is the shutdown timeout. The event loop is blocked during this time.
constexpr std::chrono::milliseconds kShortestLimit{1000};
constexpr std::chrono::milliseconds kLongestLimit{10'000};

/// True if the worker was already ending when the launcher signalled it. The signal had its default
/// action in the worker, so it would have died of it; since it ended differently, the signal came
/// too late to matter.
bool ended_by_itself(const WorkerRecord& worker) {
  const auto died_of = [&worker](int signal) {
    return worker.end->kind == ProcessEnd::Kind::killed && worker.end->value == signal;
  };
  return worker.dies_of != 0 && !died_of(worker.dies_of) && !died_of(SIGKILL);
}

// Longest interval between polls for stuck workers. The interval is a quarter of `stuck_timeout`.
constexpr std::chrono::milliseconds kLongestPause{1000};

}  // namespace

Supervisor::Supervisor(asio::any_io_executor executor, output::OutputMux& output, Options options)
    : executor_(std::move(executor)),
      output_(output),
      options_(std::move(options)),
      clock_(executor_),
      next_look_(executor_),
      rejoined_look_(executor_),
      stuck_watch_(options_.stuck_timeout),
      ended_(executor_) {}

asio::awaitable<AttemptOutcome> Supervisor::run(std::vector<WorkerSpec> specs) {
  start(specs);
  if (options_.stuck_timeout.count() != 0) {
    look_for_stuck();
  }
  co_await ended_.passed();
  if (!outcome_.gave_up) {
    end_stragglers();
  }
  AttemptOutcome outcome = outcome_;  // `watch` still runs for workers that could not be killed
  if (is_lost_to_blame_) {
    outcome.workers[lost_->first] = lost_->second;
  }
  co_return outcome;
}

Spared Supervisor::spared() const noexcept {
  const ForkServer* const server = options_.surroundings.fork_server;
  return {.group = options_.surroundings.guardian_group,
          .child = server != nullptr ? server->pid() : 0};
}

/// Kills the processes that workers started and left running.
void Supervisor::end_stragglers() {
  Cgroup* const cgroup = options_.surroundings.cgroup;
  const auto limit = std::clamp(options_.shutdown_timeout, kShortestLimit, kLongestLimit);
  outcome_.gave_up = !end_descendants(cgroup, spared(), limit);
  if (!outcome_.gave_up && cgroup != nullptr) {
    cgroup->remove();
  }
  for (const pid_t pid :
       outcome_.gave_up ? descendants(::getpid(), "/proc", spared().child) : std::vector<pid_t>()) {
    if (const auto state = process_state(pid); state && state->letter != 'Z') {
      outcome_.left_behind.push_back("pid " + std::to_string(pid) + " (" + state->name + "), " +
                                     describe_state(pid));
    }
  }
}

// An exception here leaves `processes_` to the destructor, which kills the workers started so far.
void Supervisor::start(const std::vector<WorkerSpec>& specs) {
  require_descriptors(specs, options_.other_descriptors);
  processes_.reserve(specs.size());
  for (const WorkerSpec& spec : specs) {
    processes_.push_back(start(spec));
    outcome_.workers.emplace_back();
    note_start(processes_.size() - 1, spec);
  }
  remaining_ = specs.size();
  tell_running();
  for (std::size_t index = 0; index < specs.size(); ++index) {
    asio::co_spawn(executor_, watch(index), rethrow);
  }
}

WorkerProcess Supervisor::start(const WorkerSpec& spec) {
  if (spec.inherits_output) {
    return {executor_, spec, STDOUT_FILENO, STDERR_FILENO, options_.surroundings};
  }
  const output::OutputMux::WorkerEnds ends =
      output_.add_worker({spec.rank, spec.prefix, spec.targets, spec.process_group != 0});
  return {executor_, spec, ends.out.get(), ends.err.get(), options_.surroundings};
}

/// Makes the record of a worker that has been started.
void Supervisor::note_start(std::size_t index, const WorkerSpec& spec) {
  WorkerRecord& worker = outcome_.workers[index];
  worker = {};
  worker.rank = spec.rank;
  worker.local_rank = spec.local_rank;
  worker.pid = processes_[index].pid();
  logger(Component::launcher)
      .debug("rank {} (local rank {}) is process {}", spec.rank, spec.local_rank, worker.pid);
  if (processes_[index].has_joined()) {
    leader_ = index;
    options_.job_control->set_leader(worker.pid);
  }
}

void Supervisor::replace(std::vector<WorkerSpec> specs, std::chrono::seconds limit) {
  specs_ = std::move(specs);
  time_to_rejoin_ = limit;
  handle(AttemptEvent::round_formed);
}

/// Starts the workers that have ended, and gives the others their ranks of the new round.
void Supervisor::replace_ended() {
  for (std::size_t index = 0; index < specs_.size(); ++index) {
    WorkerRecord& worker = outcome_.workers[index];
    const WorkerSpec& spec = specs_[index];
    if (worker.rank != spec.rank) {
      output_.rename(worker.rank, spec.rank, spec.prefix);
      worker.rank = spec.rank;
    }
    if (worker.end) {
      start_again(index, spec);
    }
  }
}

/// The children of the last process, which nobody needs any more, may hold what the new one needs,
/// such as ports.
void Supervisor::start_again(std::size_t index, const WorkerSpec& spec) {
  if (!processes_[index].has_joined()) {
    ::kill(-outcome_.workers[index].pid, SIGKILL);
  }
  output_.drain(spec.rank);
  processes_[index] = start(spec);
  note_start(index, spec);
  ++remaining_;
  tell_running();
  asio::co_spawn(executor_, watch(index), rethrow);
}

/// Polls the memory in which workers say that they have rejoined: they send no event.
void Supervisor::look_for_rejoined() {
  constexpr std::chrono::milliseconds kPause{20};
  if (state_ != AttemptState::replacing) {
    return;
  }
  if (options_.have_rejoined(outcome_.workers)) {
    handle(AttemptEvent::all_rejoined);
    return;
  }
  rejoined_look_.expires_after(kPause);
  rejoined_look_.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      look_for_rejoined();
    }
  });
}

void Supervisor::tell_running() const {
  if (options_.on_running) {
    options_.on_running(static_cast<int>(remaining_));
  }
}

// The record of the worker is completed before `handle`, whose actions may read it.
asio::awaitable<void> Supervisor::watch(std::size_t index) {
  const ProcessEnd end = co_await processes_[index].wait();
  WorkerRecord& worker = outcome_.workers[index];
  worker.end = end;
  worker.peak_memory = processes_[index].peak_memory();
  worker.got_passed_signal = end.kind == ProcessEnd::Kind::killed && passed_on_.contains(end.value);
  --remaining_;
  logger(Component::launcher)
      .debug("rank {} (process {}) has ended: {}; {} remain", worker.rank, worker.pid,
             end.describe(), remaining_);
  if (leader_ == index) {
    options_.job_control->set_leader(0);
  }
  tell_running();
  if (worker.stuck.empty()) {  // a stuck worker's times were set when it was detected
    worker.ended_at = std::chrono::system_clock::now();
    worker.died_at = std::chrono::steady_clock::now();
  }
  worker.told_to_end = worker.told_to_end && !ended_by_itself(worker);
  if (!end.ok() && state_ < AttemptState::failing) {
    first_to_fail_ = index;
  }
  // While a worker is replaced, another one that exits has an error of its own, or cannot rejoin.
  const bool may_be_replaced =
      state_ < AttemptState::failing &&
      (state_ != AttemptState::replacing || end.kind == ProcessEnd::Kind::killed);
  const bool is_replaced =
      !end.ok() && options_.is_replaced && may_be_replaced && options_.is_replaced(worker);
  if (is_replaced && !lost_) {
    lost_.emplace(index, worker);  // kept until all have rejoined
  }
  handle(end.ok()      ? AttemptEvent::worker_succeeded
         : is_replaced ? AttemptEvent::workers_lost
                       : AttemptEvent::worker_failed);
  if (state_ == AttemptState::failing) {
    look_for_cause(false);
  }
  if (remaining_ == 0) {
    handle(AttemptEvent::all_ended);
  }
}

void Supervisor::look_for_cause(bool is_last) {
  auto cause = options_.find_cause ? options_.find_cause(outcome_.workers, is_last)
                                   : std::optional(first_to_fail_);
  if (is_last && !cause) {
    cause = first_to_fail_;
  }
  if (cause) {
    fail(*cause);
    handle(AttemptEvent::cause_is_known);
  }
}

void Supervisor::fail(std::size_t index) {
  if (options_.on_first_failure) {
    options_.on_first_failure(outcome_.workers[index]);
  }
}

/// Polls the workers' states: the kernel sends no event when a process enters uninterruptible
/// sleep. A stuck worker counts as failed, and as the root cause.
void Supervisor::look_for_stuck() {
  const auto now = std::chrono::steady_clock::now();
  for (std::size_t index = 0; index < processes_.size() && state_ == AttemptState::running;
       ++index) {
    WorkerRecord& worker = outcome_.workers[index];
    if (!worker.end && stuck_watch_.is_stuck(worker.pid, now)) {
      worker.stuck = describe_state(worker.pid);
      worker.ended_at = std::chrono::system_clock::now();
      worker.died_at = now;
      asio::co_spawn(executor_, end_stuck(index), rethrow);
      return;
    }
  }
  if (state_ == AttemptState::running) {
    next_look_.expires_after(std::min(options_.stuck_timeout / 4, kLongestPause));
    next_look_.async_wait([this](const boost::system::error_code& error) {
      if (!error) {
        look_for_stuck();
      }
    });
  }
}

asio::awaitable<void> Supervisor::end_stuck(std::size_t index) {
  if (options_.look_inside) {
    co_await options_.look_inside();
  }
  if (state_ == AttemptState::running) {
    handle(AttemptEvent::worker_failed);
    fail(index);
    handle(AttemptEvent::cause_is_known);
  }
}

void Supervisor::on_signal(PassedSignal signal) {
  if (signal.number == SIGCHLD) {
    follow_leader();
    std::vector<pid_t> workers;
    for (const WorkerProcess& process : processes_) {
      workers.push_back(process.pid());
    }
    reap_orphans(workers);
    return;
  }
  if (signal.number == SIGTSTP && signal.from_terminal && leader_runs()) {
    return;  // the leader got it too; if it stops, `follow_leader` stops the others
  }
  if (signal.number == SIGCONT && leader_runs()) {
    follow_leader();
    if (leader_is_stopped_ && !options_.job_control->is_continued()) {
      return;  // this SIGCONT belongs to an earlier stop; the leader has stopped again since
    }
    // A running leader must not get a second SIGCONT: it would cancel a pending stop signal.
    signal.from_terminal = !leader_is_stopped_;
  }
  passed_on_.insert(signal.number);
  signal_running(signal);
}

bool Supervisor::is_leader(const WorkerRecord& worker) const {
  return leader_ && outcome_.workers[*leader_].rank == worker.rank;
}

bool Supervisor::is_led_alone() const {
  return leader_runs() && processes_.size() == 1;
}

bool Supervisor::leader_runs() const {
  return leader_ && !outcome_.workers[*leader_].end;
}

/// Stops or continues the other workers and the guardian after the leader was stopped or continued.
/// Only waitid() without WEXITED is used, so that the leader's end is left for `watch`.
void Supervisor::follow_leader() {
  siginfo_t info{};
  while (leader_runs() &&
         ::waitid(P_PID, static_cast<id_t>(outcome_.workers[*leader_].pid), &info,
                  WSTOPPED | WCONTINUED | WNOHANG) == 0 &&
         info.si_pid != 0) {
    const bool stops = info.si_code == CLD_STOPPED;
    leader_is_stopped_ = stops;
    for (std::size_t index = 0; index < processes_.size(); ++index) {
      if (index != *leader_ && !outcome_.workers[index].end) {
        processes_[index].signal(stops ? SIGTSTP : SIGCONT);
      }
    }
    if (!stops) {
      options_.job_control->go_on();
    } else {
      if (options_.before_stop) {
        options_.before_stop();
      }
      options_.job_control->stop(info.si_status);
    }
    info = {};
  }
}

void Supervisor::stop(PassedSignal signal) {
  if (state_ < AttemptState::stopping) {
    signal_for_stop_ = signal;
  }
  handle(AttemptEvent::stop_signal);
}

void Supervisor::on_peer_failure() {
  handle(AttemptEvent::peer_failed);
}

void Supervisor::handle(AttemptEvent event) {
  const AttemptStep step = attempt_step(state_, event);
  if (step.next != state_) {
    logger(Component::launcher)
        .debug("state of this machine's workers: {} ({})", name_of(step.next), name_of(event));
  }
  state_ = step.next;
  switch (step.action) {
    case AttemptAction::none: break;
    case AttemptAction::hold:
      clock_.cancel();
      next_look_.cancel();
      rejoined_look_.cancel();
      break;
    case AttemptAction::replace:
      replace_ended();
      start_clock(time_to_rejoin_);
      look_for_rejoined();
      break;
    case AttemptAction::go_on:
      clock_.cancel();
      lost_.reset();
      options_.on_rejoined(true);
      if (options_.stuck_timeout.count() != 0) {
        look_for_stuck();
      }
      break;
    case AttemptAction::blame_lost:
      is_lost_to_blame_ = lost_.has_value();
      options_.on_rejoined(false);
      handle(AttemptEvent::cause_is_known);
      break;
    case AttemptAction::find_cause: start_clock(options_.cause_timeout); break;
    case AttemptAction::stop: stop_workers(); break;
    case AttemptAction::kill: kill_workers(); break;
    case AttemptAction::give_up: give_up(); [[fallthrough]];
    case AttemptAction::finish:
      clock_.cancel();
      next_look_.cancel();
      rejoined_look_.cancel();
      ended_.open();
      break;
  }
}

void Supervisor::give_up() {
  outcome_.gave_up = true;
  for (WorkerRecord& worker : outcome_.workers) {
    if (!worker.end && worker.stuck.empty()) {
      worker.stuck = describe_state(worker.pid);
    }
  }
}

/// Records which workers the launcher is about to end by `signal`. A worker that has already ended,
/// even if `watch` has not seen it yet, ended by itself.
void Supervisor::tell_to_end(int signal) {
  for (std::size_t index = 0; index < processes_.size(); ++index) {
    WorkerRecord& worker = outcome_.workers[index];
    if (!worker.end && worker.stuck.empty() && !processes_[index].has_ended()) {
      worker.told_to_end = true;
      worker.dies_of = has_default_action(worker.pid, signal) ? signal : 0;
    }
  }
}

void Supervisor::signal_running(PassedSignal signal) {
  for (std::size_t index = 0; index < processes_.size(); ++index) {
    const bool has_it = signal.from_terminal && processes_[index].has_joined();
    if (!outcome_.workers[index].end && !has_it) {
      processes_[index].signal(signal.number);
    }
  }
}

void Supervisor::stop_workers() {
  // Like torchrun: workers get the user's signal unchanged, or SIGTERM after a failure.
  tell_to_end(signal_for_stop_.number);
  signal_running(signal_for_stop_);
  signal_running({SIGCONT});  // a stopped worker would not handle the signal
  start_clock(options_.shutdown_timeout);
  if (remaining_ == 0) {
    handle(AttemptEvent::all_ended);
  }
}

void Supervisor::kill_workers() {
  tell_to_end(SIGKILL);
  signal_running({SIGKILL});
  kill_descendants(options_.surroundings.cgroup, spared());
  start_clock(std::max(options_.shutdown_timeout, kTimeToDie));
}

void Supervisor::start_clock(std::chrono::milliseconds limit) {
  clock_.expires_after(limit);  // cancels the limit of the previous state
  clock_.async_wait([this](const boost::system::error_code& error) {
    if (error || clock_.expiry() > std::chrono::steady_clock::now()) {
      return;  // cancelled, or restarted after this handler was queued
    }
    if (state_ == AttemptState::failing) {
      look_for_cause(true);
    } else {
      handle(AttemptEvent::time_is_over);
    }
  });
}

}  // namespace acc::launcher::supervision
