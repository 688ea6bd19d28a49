#include "acc/base/error.hpp"
#include "job/running_job.hpp"
#include "report/words.hpp"
#include "supervision/descendants.hpp"
#include "supervision/signals.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;
using rendezvous::AttemptEnd;
using Cause = AttemptEnd::Cause;

asio::awaitable<void> Job::watch_guard() {
  co_await alive_.async_wait(asio::posix::stream_descriptor::wait_read,
                             asio::as_tuple(asio::use_awaitable));
  if (!alive_.is_open()) {
    co_return;  // the job is over
  }
  if (peers_) {
    peers_->announce(Cause::other, 1, "acclaunch on " + host_ + " is gone");
  } else if (phase_ == Phase::meeting) {
    asio::co_spawn(io_, meeting_.leave(), asio::detached);
  }
  say("the guardian or the keeper of this job was killed: ending the workers");
  if (phase_ == Phase::running) {  // whatever they end with is not their fault
    supervisor_->stop(SIGKILL);
  }
  end_descendants(&remains_.cgroup());
  if (peers_ || phase_ == Phase::meeting) {  // time for that one message
    asio::steady_timer moment(io_, std::chrono::milliseconds(500));
    co_await moment.async_wait(asio::use_awaitable);
  }
  remains_.clean_up();  // work() may have started workers in that moment
  logs_.remove();
  ::_exit(128 + SIGKILL);
}

void Job::on_signal(int signal) {
  if (signal == SIGTSTP) {
    output_.hide_status();  // the shell's prompt is next
  }
  if (is_stop_signal(signal) || std::ranges::count(plan_.stop_signals, signal) > 0) {
    stop({128 + signal, signal, "stopped by " + signal_name(signal), true});
  } else if (phase_ == Phase::running && (signal == SIGCHLD || !is_own_signal(signal))) {
    supervisor_->on_signal(signal);
  }
}

/// Ends the job when its time is over.
void Job::stop_in_time() {
  if (plan_.time_limit.count() == 0) {
    return;
  }
  time_limit_.expires_after(plan_.time_limit);
  time_limit_.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      stop({kTimedOut, SIGTERM,
            "the time limit of " + std::to_string(plan_.time_limit.count()) + " s is over", false,
            Cause::other});
    }
  });
}

void Job::stop(const StopRequest& request) {
  if (stop_ && !request.insists) {
    return;
  }
  stop_ = stop_ ? stop_ : request;
  if (peers_ && phase_ != Phase::tying) {
    if (stopping_) {
      peers_->insist();
    }
    peers_->announce(request.cause, request.exit_status, request.reason);
  }
  restarting_ = false;
  if (phase_ != Phase::running) {
    stop_outside_of_attempt(request);
    return;
  }
  say(request.reason + (std::exchange(stopping_, true) ? " while ending: killing the workers"
                                                       : ": ending the workers"));
  supervisor_->stop(request.signal);
}

void Job::stop_outside_of_attempt(const StopRequest& request) {
  switch (std::exchange(phase_, Phase::idle)) {
    case Phase::meeting: asio::co_spawn(io_, leave_meeting(), asio::detached); break;
    case Phase::tying: return;  // work() goes on, and sees it
    case Phase::settling:
      if (peers_) {
        peers_->hurry();
      }
      pause_.cancel();
      return;
    default: io_.stop(); break;
  }
  status_ = request.exit_status;
}

/// A single worker has the terminal to itself, and what is typed there.
bool Job::was_ended_by_terminal(const WorkerRecord& worker) const {
  return alone_ && ::isatty(STDIN_FILENO) == 1 && worker.end &&
         worker.end->kind == ProcessEnd::Kind::killed &&
         (worker.end->value == SIGINT || worker.end->value == SIGQUIT);
}

void Job::on_first_failure(const WorkerRecord& worker) {
  if (was_ended_by_terminal(worker)) {
    ended_by_terminal_ = true;
    const int signal = worker.end->value;
    stop({128 + signal, signal, "stopped by " + signal_name(signal), false});
    return;
  }
  stopping_ = true;
  restarting_ = attempt_ < plan_.max_restarts && worker.end &&
                worker.end->kind != ProcessEnd::Kind::not_executed;
  const std::string line = failure_line(worker, host_);
  if (plan_.local_world_size > 1) {
    say(line + "; ending the others");
  }
  if (peers_) {
    const int status = worker.end ? worker.end->shell_status() : kTimedOut;
    peers_->announce(Cause::worker, status, line, restarting_);
  }
}

/// On another machine the user has asked twice.
void Job::on_insist() {
  if (phase_ == Phase::running) {
    say("asked twice to end: killing the workers");
    supervisor_->stop(SIGKILL);
  }
}

/// As for any program, the end of who reads its output is its own.
void Job::on_lost(const Lost& lost) {
  if (lost.error == EPIPE && phase_ != Phase::idle) {
    const std::string stream = lost.is_stderr ? "stderr" : "stdout";
    stop({128 + SIGPIPE, SIGTERM, "the reader of " + stream + " has gone", false});
  }
}

/// A launcher that cannot go on ends the job on all machines.
void Job::on_fault(const std::exception& error) {
  phase_ = Phase::idle;
  if (!gave_up_) {  // else it waits for one that cannot be killed
    supervisor_.reset();
  }
  if (peers_) {
    const auto* known = dynamic_cast<const Error*>(&error);
    peers_->announce(Cause::other, known != nullptr ? acc::exit_status(*known) : 1,
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
  if (!end.restarts) {
    pause_.cancel();
  }
}

}  // namespace acc::launcher
