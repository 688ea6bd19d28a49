// SPDX-License-Identifier: Apache-2.0
// Events during a job: signals, stop requests, failures of workers, ends of attempts on other
// machines, and the loss of the processes or connections that this launcher depends on. Two rules
// hold throughout. The first end of an attempt counts: the rendezvous decides which one it is. And
// a worker that dies because of a signal to the whole job must not be reported as a failure, so
// signals and deaths that arrive in either order are matched within short grace periods.
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/base/written_file.hpp"
#include "job/running_job.hpp"
#include "report/torch_record.hpp"
#include "report/words.hpp"
#include "spawn/child_launcher.hpp"
#include "spawn/create_child.hpp"
#include "supervision/signals.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <utility>

namespace acc::launcher::job {
namespace asio = boost::asio;
using rendezvous::AttemptEnd;
using Cause = AttemptEnd::Cause;

namespace {

/// True if the signal that ended a worker may also be on its way to this process: the manager
/// signals every process, or the signal went to the launcher's process group, which the worker
/// belongs to if `is_leader`.
bool may_be_everybodys_signal(const LaunchPlan& plan, const supervision::WorkerRecord& worker,
                              bool is_leader) {
  if ((!plan.manager.signals_everybody && !is_leader) || !worker.end) {
    return false;
  }
  const int signal = worker.end->shell_status() - 128;
  return supervision::is_stop_signal(signal) ||
         std::ranges::count(plan.supervision.stop_signals, signal) > 0;
}

/// Limits of the time in which workers are looked into before they are ended.
constexpr std::chrono::seconds kTimeToLook{20};
constexpr std::chrono::seconds kTimeForTorch{3};

/// Makes the child the leader of a process group, and gives it the signals that this process
/// blocks.
struct OwnGroup {
  boost::process::v2::error_code on_exec_setup(const spawn::ChildLauncher&,
                                               const boost::process::v2::filesystem::path&,
                                               const char* const*) const {
    ::setpgid(0, 0);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    return {};
  }
};

/// Starts a sub-command of this program. Its output goes to a new file, or to stderr if `file` is
/// empty. Returns its pid, or -1.
pid_t start_command(const std::vector<std::string>& words, const std::string& file) {
  UniqueFd output;
  try {
    output = file.empty() ? UniqueFd(::dup(STDERR_FILENO)) : create_file(file, O_WRONLY, 0600);
  } catch (const Error& error) {
    notice(Component::launcher, LogLevel::err, "acclaunch: ", error.what());
  }
  if (!output) {
    return -1;
  }
  boost::process::v2::process_stdio streams{nullptr, {output.get()}, {output.get()}};
  return spawn::ChildLauncher().start("/proc/self/exe", words, streams, OwnGroup{});
}

}  // namespace

/// Moves to the next state. Returns the action, which the caller performs.
JobAction Job::advance(JobEvent event) {
  const JobStep step = job_step(state_, event);
  state_ = step.next;
  return step.action;
}

/// Ends the job after the guardian or the keeper was killed.
asio::awaitable<void> Job::end_without_guard() {
  asio::co_spawn(runner_.io(), rounds_->leave(), asio::detached);
  say("the guardian or keeper process of this job was killed: ending the workers");
  if (advance(JobEvent::kill_order) == JobAction::kill) {  // so that deaths are no failures
    attempt_->supervisor->stop({SIGKILL});
  }
  runner_.leftovers().end_processes();
  if (plan_.layout.num_machines > 1) {  // time to send the message of `leave`
    asio::steady_timer moment(runner_.io(), std::chrono::milliseconds(500));
    co_await moment.async_wait(asio::use_awaitable);
  }
  logs_.remove();
}

void Job::on_signal(supervision::PassedSignal passed, bool is_said) {
  const int signal = passed.number;
  if (signal == SIGTSTP) {
    runner_.output().hide_status();  // the shell prints its prompt next
  }
  if (passed.from_terminal && (signal == SIGINT || signal == SIGQUIT)) {
    // A single worker in the terminal's foreground group gets the signal too, and may handle it. If
    // it dies of it, on_first_failure stops the job.
    const bool is_leaders = has_workers(state_) && alone_ && attempt_->supervisor->is_led_alone();
    if (is_leaders || (stop_ && std::exchange(stop_->signal_follows, false))) {
      return;
    }
  }
  if (supervision::is_stop_signal(signal) ||
      std::ranges::count(plan_.supervision.stop_signals, signal) > 0) {
    stop(plan_.manager.signals_everybody ? JobEvent::stop_request : JobEvent::forcing_request,
         {.exit_status = 128 + signal,
          .signal = passed,
          .reason = "stopped by " + supervision::signal_name(signal),
          .is_said = is_said});
  } else if (has_workers(state_) && signal == SIGUSR2) {
    dump_records();
  } else if (has_workers(state_) && (signal == SIGCHLD || !supervision::is_own_signal(signal))) {
    attempt_->supervisor->on_signal(passed);
  }
}

/// Starts the timer of --timeout.
void Job::stop_in_time() {
  if (plan_.supervision.time_limit.count() == 0) {
    return;
  }
  time_limit_.expires_after(plan_.supervision.time_limit);
  time_limit_.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      asio::co_spawn(runner_.io(), end_after_time_limit(), asio::detached);
    }
  });
}

asio::awaitable<void> Job::end_after_time_limit() {
  if (state_ == JobState::running) {
    co_await look_inside();
  }
  stop(JobEvent::stop_request,
       {.exit_status = report::kTimedOut,
        .signal = {SIGTERM},
        .reason = "the time limit of " + std::to_string(plan_.supervision.time_limit.count()) +
                  " s (--timeout) is exceeded",
        .cause = Cause::other});
}

/// Finds out where workers hang, for the report, before they are ended: the records of torch, and
/// the stacks.
asio::awaitable<void> Job::look_inside() {
  const std::string file = logs_.stacks_file(attempt_->number);
  if (file.empty()) {
    co_return;
  }
  say("looking where the workers are, for up to " + std::to_string(kTimeToLook.count()) + " s",
      LogLevel::info);
  co_await await_torch_records();
  const pid_t reader = start_command({"stacks", "--brief", std::to_string(::getpid())}, file);
  asio::steady_timer pause(runner_.io());
  const auto deadline = std::chrono::steady_clock::now() + kTimeToLook;
  // The supervisor reaps the reader with other children that are no workers.
  while (spawn::is_child(reader) && std::chrono::steady_clock::now() < deadline) {
    pause.expires_after(std::chrono::milliseconds(50));
    co_await pause.async_wait(asio::use_awaitable);
  }
  if (spawn::is_child(reader)) {
    ::kill(-reader, SIGKILL);  // with its debuggers, which would keep the workers stopped
  }
  if (attempt_) {
    attempt_->stacks = report::read_stacks(file);
  }
}

/// Asks Python programs for the records of torch, and waits until those that listen have answered.
asio::awaitable<void> Job::await_torch_records() {
  std::vector<report::RecordFiles> asked;
  for (int i = 0; i < plan_.layout.local_world_size; ++i) {
    const report::RecordFiles record(
        logs_.flight_record(attempt_->number, first_local_rank(plan_.layout) + i));
    if (report::ask_for_torch_record(record, report::TorchForm::json)) {
      asked.push_back(record);
    }
  }
  asio::steady_timer pause(runner_.io());
  const auto deadline = std::chrono::steady_clock::now() + kTimeForTorch;
  while (std::chrono::steady_clock::now() < deadline &&
         !std::ranges::all_of(asked, [](const report::RecordFiles& record) {
           return report::has_torch_record(record, report::TorchForm::json);
         })) {
    pause.expires_after(std::chrono::milliseconds(20));
    co_await pause.async_wait(asio::use_awaitable);
  }
}

/// SIGUSR2: writes the last collectives to a new folder, by a process of its own.
void Job::dump_records() {
  namespace fs = std::filesystem;
  const std::string kept = logs_.kept_folder(attempt_->number);
  const fs::path folder =
      (kept.empty() ? fs::path(plan_.working_directory) : fs::path(kept)) /
      ("collectives_" + std::to_string(::getpid()) + "_" + std::to_string(num_dumps_++));
  say("writing the last collectives to " + folder.string(), LogLevel::info);
  start_command({"dump", std::to_string(::getpid()), "-o", folder.string()}, "");
}

// The first request ends the workers with its signal and, after the shutdown timeout, with SIGKILL.
// A second request that may force the stop kills them at once, on all machines.
void Job::stop(JobEvent event, const StopRequest& request) {
  const JobAction action = advance(event);
  if (action == JobAction::none) {
    return;
  }
  const bool explains = forget_unexplained();
  stop_ = stop_ ? stop_ : request;
  if (action == JobAction::kill || action == JobAction::hurry) {
    rounds_->force_stop();
  }
  const auto tell = [&](const std::string& what) {
    if (!request.is_said) {
      say(request.reason + what);
    }
  };
  rounds_->end(
      {.exit_status = request.exit_status, .cause = request.cause, .reason = request.reason});
  switch (action) {
    case JobAction::end:
      tell(": ending the workers");
      if (!explains) {  // otherwise the signal itself has reached them already
        stop_workers_when_known(request.signal);
      }
      break;
    case JobAction::note: tell(" while ending"); break;
    case JobAction::kill:
      tell(" while ending: killing the workers");
      stop_workers();
      attempt_->supervisor->stop(request.signal);
      break;
    case JobAction::hurry: rounds_->hurry(); [[fallthrough]];
    case JobAction::withdraw: pause_.cancel(); break;
    case JobAction::leave:
      status_ = request.exit_status;
      asio::co_spawn(runner_.io(), leave_while_joining(), asio::detached);
      break;
    case JobAction::quit:
      status_ = request.exit_status;
      runner_.io().stop();
      break;
    case JobAction::none:
    case JobAction::announce:
    case JobAction::follow: break;
  }
}

/// Ends the workers when the other machines know of the end, at the latest after 200 ms. Workers on
/// those machines fail when their peers here die; if the end is known by then, that is no failure.
void Job::stop_workers_when_known(supervision::PassedSignal signal) {
  constexpr std::chrono::milliseconds kLimit{200};
  attempt_->signal_to_workers = signal;
  if (round_->num_machines() == 1) {
    stop_workers();
    return;
  }
  attempt_->end_spreads.expires_after(kLimit);
  attempt_->end_spreads.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      stop_workers();
    }
  });
}

/// Ends the waits of workers for ranks that are being replaced: nobody will start those any more.
void Job::end_replacement() {
  using enum supervision::AttemptState;
  const auto state = attempt_->supervisor->state();
  if (attempt_->membership && (state == holding || state == replacing)) {
    attempt_->membership->end_round("the job ends or starts again while ranks are replaced");
  }
}

/// Sends the pending signal of `stop_workers_when_known`, if there is one.
void Job::stop_workers() {
  attempt_->end_spreads.cancel();
  const auto signal = std::exchange(attempt_->signal_to_workers, std::nullopt);
  if (signal && has_workers(state_)) {
    end_replacement();
    if (attempt_->membership) {
      attempt_->membership->begin_no_more();  // for those whose peers leave before them
    }
    attempt_->supervisor->stop(*signal);
  }
}

/// True if the worker was killed by Ctrl-C or Ctrl-\. A worker in the terminal's foreground process
/// group gets these signals from the kernel, not from the launcher.
bool Job::was_ended_by_terminal(const supervision::WorkerRecord& worker) const {
  return attempt_->supervisor->is_leader(worker) && worker.end &&
         worker.end->kind == supervision::ProcessEnd::Kind::killed &&
         (worker.end->value == SIGINT || worker.end->value == SIGQUIT);
}

void Job::on_first_failure(const supervision::WorkerRecord& worker) {
  if (was_ended_by_terminal(worker)) {
    const int signal = worker.end->value;
    stop(JobEvent::stop_request, {.exit_status = 128 + signal,
                                  .signal = {signal},
                                  .reason = "stopped by " + supervision::signal_name(signal)});
    stop_->signal_follows = true;
    return;
  }
  if (may_be_everybodys_signal(plan_, worker, attempt_->supervisor->is_leader(worker))) {
    wait_for_own_signal(worker);
  } else {
    announce_failure(worker);
  }
}

/// Delays the announcement of a worker's death by a signal that may be meant for the whole job. A
/// sender that signals every process may reach workers before their launcher.
void Job::wait_for_own_signal(const supervision::WorkerRecord& worker) {
  constexpr std::chrono::milliseconds kGrace{200};
  attempt_->unexplained = worker;
  attempt_->explanation.expires_after(kGrace);
  attempt_->explanation.async_wait([this](const boost::system::error_code& error) {
    if (!error && attempt_->unexplained) {
      announce_failure(*std::exchange(attempt_->unexplained, std::nullopt));
    }
  });
}

/// Drops a delayed failure, because the signal for the whole job has arrived. True if there was
/// one.
bool Job::forget_unexplained() {
  if (!attempt_) {
    return false;
  }
  attempt_->explanation.cancel();
  return std::exchange(attempt_->unexplained, std::nullopt).has_value();
}

/// Waits until a delayed failure has been announced or dropped.
asio::awaitable<void> Job::first_failure_is_explained() {
  if (attempt_->unexplained) {
    co_await attempt_->explanation.async_wait(asio::as_tuple(asio::use_awaitable));
  }
  if (attempt_->unexplained) {
    announce_failure(*std::exchange(attempt_->unexplained, std::nullopt));
  }
}

/// True if a worker that failed is started again without the others (--rejoin), in the next round,
/// which this machine asks for. A signal that may be meant for the whole job is left to those that
/// handle it.
bool Job::is_replaced(const supervision::WorkerRecord& worker) {
  using Kind = supervision::ProcessEnd::Kind;
  const bool is_for_all =
      worker.end->kind == Kind::killed &&
      (supervision::is_stop_signal(worker.end->value) ||
       std::ranges::count(plan_.supervision.stop_signals, worker.end->value) > 0);
  if (state_ != JobState::running || !attempt_->membership || is_for_all ||
      worker.end->kind == Kind::not_executed) {
    return false;
  }
  const std::string line = report::failure_line(worker, host_);
  if (attempt_->is_renewed) {
    say(line + "; starting it again in the next round too", LogLevel::err);
    return true;
  }
  if (round_->restart_count >= plan_.supervision.max_restarts) {
    return false;
  }
  say(fmt::format("{}; starting it again, the others rejoin (restart {} of {})", line,
                  round_->restart_count + 1, plan_.supervision.max_restarts),
      LogLevel::err);
  rounds_->end({.exit_status = worker.end->shell_status(),
                .restarts = true,
                .cause = Cause::worker,
                .reason = line});
  begin_renewal(true);
  return true;
}

/// Keeps the workers that run for the next round, which `await_workers` joins.
void Job::begin_renewal(bool is_anyone_lost) {
  if (!std::exchange(attempt_->is_renewed, true)) {
    is_anyone_lost ? attempt_->membership->end_epoch()
                   : attempt_->membership->end_epoch_between_steps();
    attempt_->news.open();
  }
}

/// True if workers are lost, and those of this machine can rejoin when others have their ranks; or
/// if the number of machines changes with --elastic_replicas. Not if one has failed otherwise while
/// others rejoin: it cannot, like those of the same program here.
bool Job::keeps_workers(const AttemptEnd& end) const {
  using enum supervision::AttemptState;
  constexpr int kKilled = 128;
  if (!plan_.supervision.rejoins || state_ != JobState::running || !end.restarts ||
      !(breaks_groups(end) || changes_machines(end)) || !attempt_->supervisor ||
      !attempt_->membership) {
    return false;
  }
  const auto state = attempt_->supervisor->state();
  return state == running || state == holding ||
         (state == replacing && (end.cause != Cause::worker || end.exit_status > kKilled));
}

bool Job::changes_machines(const AttemptEnd& end) const {
  return plan_.supervision.elastic_replicas &&
         (end.cause == Cause::membership || end.cause == Cause::join);
}

bool Job::have_rejoined(const std::vector<supervision::WorkerRecord>& workers) const {
  return std::ranges::all_of(workers, [this](const auto& worker) {
    return worker.end ||
           attempt_->membership->has_joined(worker.local_rank, attempt_->membership->epoch());
  });
}

void Job::on_rejoined(bool rejoined) {
  if (rejoined) {
    say("all workers have rejoined", LogLevel::info);
    return;
  }
  const std::string line = fmt::format("workers did not rejoin within {} s",
                                       attempt_->supervisor->time_to_rejoin().count());
  say(line + "; starting all again", LogLevel::err);
  if (advance(JobEvent::worker_failed) == JobAction::announce) {
    rounds_->end({.exit_status = report::kTimedOut,
                  .restarts = true,
                  .cause = Cause::worker,
                  .reason = line});
  }
}

void Job::announce_failure(const supervision::WorkerRecord& worker) {
  if (advance(JobEvent::worker_failed) != JobAction::announce) {
    return;
  }
  const std::string line = report::failure_line(worker, host_);
  if (plan_.layout.local_world_size > 1) {
    say(line + "; ending the others", LogLevel::err);
  }
  const bool may_restart =
      worker.end && worker.end->kind != supervision::ProcessEnd::Kind::not_executed;
  rounds_->end({.exit_status = worker.end ? worker.end->shell_status() : report::kTimedOut,
                .restarts = may_restart,
                .cause = Cause::worker,
                .reason = line});
}

/// The user has forced the stop on another machine.
void Job::on_force_stop() {
  if (advance(JobEvent::kill_order) == JobAction::kill) {
    if (!stop_ || !stop_->is_said) {
      announce("second stop request: killing the workers");
    }
    attempt_->supervisor->stop({SIGKILL});
  }
}

void Job::listen_to_remote_launcher() {
  if (plan_.is_controlled) {
    control_.emplace(
        runner_.io().get_executor(), take_standard_input(),
        Control::Events{[this](const auto& message) { on_control_message(message); },
                        [this](const auto& reason) { on_remote_launcher_lost(reason); }});
  }
}

/// Handles a control message. If the output of all machines is merged, the sender has already
/// printed what happens, so this machine does not repeat it.
void Job::on_control_message(const remote_launch::control::Message& message) {
  const bool is_said = plan_.manager.merges_output;
  if (const auto* signal = std::get_if<remote_launch::control::Signal>(&message)) {
    on_signal({signal->number}, is_said);
  } else if (const auto* end = std::get_if<remote_launch::control::End>(&message)) {
    if (!has_workers(state_) && !is_said) {
      say(end->reason);
    }
    stop(JobEvent::stop_request, {.exit_status = end->exit_status,
                                  .signal = {SIGTERM},
                                  .reason = end->reason,
                                  .cause = Cause::other,
                                  .is_said = is_said});
  } else if (std::holds_alternative<remote_launch::control::ForceStop>(message)) {
    stop(JobEvent::forcing_request, {.exit_status = 128 + SIGTERM,
                                     .signal = {SIGTERM},
                                     .reason = "second stop request",
                                     .is_said = is_said});
  }
}

/// Ends the job if the connection to the acclaunch that started this one is lost: the workers'
/// output has no reader any more, and no message could end them later.
void Job::on_remote_launcher_lost(const std::string& reason) {
  constexpr int kFailed = 1;
  if (!has_workers(state_)) {
    say(reason);
  }
  stop(JobEvent::stop_request,
       {.exit_status = kFailed, .signal = {SIGTERM}, .reason = reason, .cause = Cause::other});
}

/// Ends the job if the reader of its output is gone, as SIGPIPE ends other programs.
void Job::on_lost(const output::Lost& lost) {
  if (lost.error == EPIPE && control_) {
    on_remote_launcher_lost(control_->broken_connection());
  } else if (lost.error == EPIPE) {
    const std::string stream = lost.is_stderr ? "stderr" : "stdout";
    stop(JobEvent::reader_lost, {.exit_status = 128 + SIGPIPE,
                                 .signal = {SIGTERM},
                                 .reason = "the reader of " + stream + " has closed it (EPIPE)"});
  }
}

/// Ends the job on all machines after an internal fault of this launcher.
void Job::on_fault(const std::exception& error) {
  advance(JobEvent::fault);
  if (attempt_) {
    attempt_->rank_monitor.reset();  // its timer would keep the event loop alive
  }
  if (attempt_ && !attempt_->gave_up) {  // otherwise it would wait for what cannot be killed
    attempt_->supervisor.reset();
  }
  const auto* known = dynamic_cast<const Error*>(&error);
  rounds_->end({.exit_status = known != nullptr ? acc::exit_status(*known) : 1,
                .cause = Cause::other,
                .reason = "acclaunch on " + host_ + ": " + error.what()});
}

void Job::on_attempt_end(const AttemptEnd& end) {
  const bool is_own = end.machine_rank == (round_ ? round_->machine_rank : -1);
  // A stop request is printed by the acclaunch that started the machines, or else by the machine
  // that received the request.
  const bool is_said = control_ && plan_.manager.merges_output && end.cause == Cause::stop;
  forget_unexplained();
  if (end.cause == Cause::join) {
    announce(end.reason +
             (keeps_workers(end) ? "; the workers go on" : "; starting all workers again"));
  } else if (end.cause == Cause::membership || end.cause == Cause::other) {
    // Machine 0 prints the reason, unless it may be lost itself or only this machine knows it.
    const bool is_known_to_0 = end.machine_rank != 0 && (end.machine_rank > 0 || end.host != host_);
    if (!stop_ || stop_->reason != end.reason) {  // otherwise `stop` has printed it
      is_known_to_0 ? announce(end.reason) : say(end.reason);
    }
  } else if (!is_own && !is_said) {
    announce("machine " + std::to_string(end.machine_rank) + " (" + end.host +
             (end.restarts ? ") ended the attempt: " : ") ended the job: ") + end.reason);
  }
  follow(end);
}

/// Ends the workers, or keeps them for the next round.
void Job::follow(const AttemptEnd& end) {
  if (keeps_workers(end)) {
    attempt_->supervisor->hold();
    begin_renewal(end.cause != Cause::join);
    return;
  }
  const JobAction action = advance(event_of(end));
  if (attempt_) {
    attempt_->learned_at = std::chrono::steady_clock::now();
  }
  if (attempt_ && attempt_->signal_to_workers) {
    stop_workers();
  } else if (action == JobAction::follow) {
    end_replacement();
    attempt_->supervisor->on_peer_failure();
  }
  if (breaks_groups(end)) {
    // Behind the signal to the workers: one that dies of it has not failed by itself.
    asio::post(runner_.io(), [this, reason = end.reason] {
      if (attempt_ && attempt_->membership) {
        attempt_->membership->end_round(reason);
      }
    });
  }
  if (!end.restarts) {
    pause_.cancel();
  }
}

}  // namespace acc::launcher::job
