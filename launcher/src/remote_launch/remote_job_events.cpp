// SPDX-License-Identifier: Apache-2.0
#include "remote_launch/remote_job.hpp"
#include "supervision/descendants.hpp"
#include "supervision/signals.hpp"
#include "supervision/supervisor.hpp"

#include <boost/asio/post.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <vector>

// Events of a remote launch: answers of launchers, failures to start, signals, and time limits. The
// normal end is that every client exits by itself. Clients that do not exit in time are killed; the
// launchers behind them then end because of their broken connection.
namespace acc::launcher::remote_launch {
namespace {

/// Time after a failure to start in which other failures are still reported.
constexpr std::chrono::seconds kPatience{2};
/// Time for the other machines to end after the first one has ended.
constexpr std::chrono::seconds kGrace{10};
/// Time for srun to print its last messages when it waits for lost machines only, and then to
/// cancel its step.
constexpr std::chrono::seconds kShortGrace{2};
/// srun's warning about --cpu-bind=none on clusters without a binding plugin. It is harmless and is
/// removed from the output.
constexpr std::string_view kNoBinding = "srun: cluster configuration lacks support for cpu binding";
constexpr int kConfigStatus = 2;

}  // namespace

/// Filters a line of a client's output: handles an answer in it and returns the part to print.
std::string_view RemoteJob::hear(Client& client, std::string_view line) {
  const control::HeardLine heard = control::hear(line);
  if (heard.answer) {
    on_answer(client, *heard.answer);
  }
  if (is_over_ && !heard.before.empty()) {
    limit(waits_in_vain(client) ? kShortGrace : kGrace);  // a line restarts the time limit
  }
  return heard.before.starts_with(kNoBinding) ? std::string_view() : heard.before;
}

void RemoteJob::on_answer(Client& client, const control::Answer& answer) {
  client.group.hear(answer);
  if (std::holds_alternative<control::Started>(answer)) {
    client.heard.started = true;
    // Deferred, because OutputMux calls `hear` and cannot add a worker during that call.
    boost::asio::post(runner_.io(), [this] { begin_more(); });
  } else if (std::holds_alternative<control::Joined>(answer)) {
    client.heard.started = true;
    client.heard.joined = true;
  } else if (const auto* ended = std::get_if<control::Ended>(&answer)) {
    const bool is_group = plan_.start->means != RemoteLaunchPlan::Means::ssh;
    client.heard.ended = *ended;
    if (client.group.joined.contains(ended->host) && ended->reason.empty()) {
      is_over_ = true;
      limit(waits_in_vain(client) ? kShortGrace : kGrace);
    } else if (is_group && !client.group.joined.contains(ended->host) && !stop_ && !failure_) {
      on_start_failure("acclaunch on " + ended->host, ended->reason);
    }
  }
}

void RemoteJob::on_start_failure(const std::string& name, const std::string& reason) {
  const std::string text = name + " cannot be started: " + reason;
  say(text);
  end_job(kConfigStatus, text);
}

/// Ends the job on all machines, which would otherwise wait for a machine that does not come.
/// Machines that have not started within `kPatience` are given up.
void RemoteJob::end_job(int exit_status, const std::string& reason) {
  if (failure_) {
    return;
  }
  failure_ = exit_status;
  send_all(control::End{exit_status, reason});
  signal_uncontrolled(SIGTERM);
  patience_.expires_after(kPatience);
  patience_.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      cut_unstarted();
    }
  });
  limit(plan_.supervision.shutdown_timeout + supervision::Supervisor::kTimeToDie + kGrace);
}

void RemoteJob::on_signal(int signal) {
  if (signal == SIGCHLD) {
    std::vector<pid_t> pids;
    for (const Client& client : clients_) {
      if (client.process) {
        pids.push_back(client.process->pid());
      }
    }
    supervision::reap_orphans(pids);
  } else if (supervision::is_stop_signal(signal) ||
             std::ranges::count(plan_.supervision.stop_signals, signal) > 0) {
    stop(signal);
  } else if (!supervision::is_own_signal(signal)) {
    send_all(control::Signal{signal});
  }
}

/// Passes a stop request on. The launchers handle the first one as if it came from their terminal;
/// a second one forces the stop on all machines.
void RemoteJob::stop(int signal) {
  const bool forces = stop_ || failure_;
  if (!stop_) {
    stop_ = signal;
  }
  if (forces && plan_.manager.signals_everybody) {
    return;
  }
  const std::string what = "stopped by " + supervision::signal_name(signal);
  if (forces) {
    say(what + " while ending: killing the workers on all machines");
    send_all(control::ForceStop{});
    signal_uncontrolled(SIGKILL);
    limit(supervision::Supervisor::kTimeToDie + kGrace / 2);
  } else {
    say(what + ": ending the job on all machines");
    send_all(control::Signal{signal});
    signal_uncontrolled(SIGTERM);
    limit(plan_.supervision.shutdown_timeout + supervision::Supervisor::kTimeToDie + kGrace);
  }
  cut_unstarted();
}

/// Ends the job if the reader of its output is gone, as SIGPIPE ends other programs.
void RemoteJob::on_lost(const output::Lost& lost) {
  if (lost.error == EPIPE && !stop_ && !failure_ && !is_over_) {
    end_job(128 + SIGPIPE, std::string("the reader of ") + (lost.is_stderr ? "stderr" : "stdout") +
                               " has closed it (EPIPE)");
    cut_unstarted();
  }
}

/// Sends a heartbeat to every client now and after each interval. A client with unread input gets
/// none, so that the queue does not grow.
void RemoteJob::beat() {
  for (Client& client : clients_) {
    if (client.input && client.command.is_controlled && !client.input->is_waiting()) {
      client.input->send(control::encode(control::Beat{}));
    }
  }
  beat_.expires_after(control::kBeatInterval);
  // A handler that is queued already runs even if the timer is cancelled.
  beat_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !is_closed_) {
      beat();
    }
  });
}

void RemoteJob::send_all(const control::Message& message) {
  for (Client& client : clients_) {
    if (client.input && client.command.is_controlled) {
      client.input->send(control::encode(message));
    }
  }
}

/// Signals the clients that receive no control messages (pdsh). When they die, the machines see the
/// end of their connections.
void RemoteJob::signal_uncontrolled(int signal) {
  for (Client& client : clients_) {
    if (!client.command.is_controlled && client.process && !client.end) {
      client.process->signal(signal);
    }
  }
}

/// Kills a client. A client that has not been started yet will not be started any more.
void RemoteJob::cut(Client& client) {
  client.was_cut = true;
  if (client.process) {
    client.process->signal(SIGKILL);
  } else {
    client.end = {ClientEnd::Kind::lost, 1, ""};
  }
}

/// Kills the ssh clients whose launcher has not started: there is nothing to end there.
void RemoteJob::cut_unstarted() {
  if (plan_.start->means != RemoteLaunchPlan::Means::ssh) {
    return;
  }
  for (Client& client : clients_) {
    if (!client.end && !client.heard.started) {
      cut(client);
    }
  }
  close_when_all_ended();
}

/// Called at the time limit. Kills the clients that have not ended.
void RemoteJob::cut_silent() {
  if (runner_.output().is_blocked()) {  // clients may be waiting because their output is not read
    limit(kGrace);
    return;
  }
  for (Client& client : clients_) {
    if (client.end) {
      continue;
    }
    if (waits_in_vain(client) && !client.was_cut) {
      end_waiting(client);
    } else {
      if (!client.was_cut) {
        const bool is_one = plan_.start->means == RemoteLaunchPlan::Means::ssh;
        say(client.command.name + (is_one ? " does" : " do") +
            " not end: processes there cannot be ended from here; they end when they notice that "
            "the connection is closed");
      }
      cut(client);
    }
  }
}

/// True if an srun waits only for lost machines. It would wait until Slurm itself declares them
/// down.
bool RemoteJob::waits_in_vain(const Client& client) const {
  return plan_.start->means == RemoteLaunchPlan::Means::srun && client.group.waits_in_vain();
}

/// Ends an srun that waits for lost machines. On SIGTERM it cancels its step, so that no process of
/// the step is left if a machine comes back.
void RemoteJob::end_waiting(Client& client) {
  say(fmt::format(
      "all machines except the lost ones ({}) have ended: not waiting for srun any longer",
      fmt::join(client.group.lost, ", ")));
  client.was_cut = true;
  client.process->signal(SIGTERM);
  limit(kShortGrace);
}

/// Sets or restarts the time limit after which clients are killed.
void RemoteJob::limit(std::chrono::milliseconds time) {
  limit_.expires_after(time);
  limit_.async_wait([this](const boost::system::error_code& error) {
    if (!error && limit_.expiry() <= std::chrono::steady_clock::now()) {  // not restarted meanwhile
      cut_silent();
    }
  });
}

}  // namespace acc::launcher::remote_launch
