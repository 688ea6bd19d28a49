#include "start/starting_job.hpp"
#include "supervision/descendants.hpp"
#include "supervision/signals.hpp"
#include "supervision/supervisor.hpp"

#include <boost/asio/post.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <vector>

// What may happen while machines are started, run and end.
namespace acc::launcher {
namespace {

/// For others that cannot be started to be named too.
constexpr std::chrono::seconds kPatience{2};
/// For the rest of the machines, once one has said that the job is over.
constexpr std::chrono::seconds kGrace{10};
/// For srun to say what is left to say, once it waits in vain; and to cancel its step.
constexpr std::chrono::seconds kShortGrace{2};
/// srun's answer to --cpu-bind=none where there is no plugin that could bind: that is fine.
constexpr std::string_view kNoBinding = "srun: cluster configuration lacks support for cpu binding";
constexpr int kConfigStatus = 2;

}  // namespace

std::string_view StartingJob::hear(Client& client, std::string_view line) {
  const control::HeardLine heard = control::hear(line);
  if (heard.answer) {
    on_answer(client, *heard.answer);
  }
  if (is_over_ && !heard.before.empty()) {
    limit(waits_in_vain(client) ? kShortGrace : kGrace);  // from now
  }
  return heard.before.starts_with(kNoBinding) ? std::string_view() : heard.before;
}

void StartingJob::on_answer(Client& client, const control::Answer& answer) {
  client.group.hear(answer);
  if (std::holds_alternative<control::Started>(answer)) {
    client.heard.started = true;
    boost::asio::post(io_, [this] { begin_more(); });  // the output is at work now
  } else if (std::holds_alternative<control::Joined>(answer)) {
    client.heard.started = true;
    client.heard.joined = true;
  } else if (const auto* ended = std::get_if<control::Ended>(&answer)) {
    const bool is_group = plan_.start->means != StartPlan::Means::ssh;
    client.heard.ended = *ended;
    if (client.group.joined.contains(ended->host) && ended->reason.empty()) {
      is_over_ = true;
      limit(waits_in_vain(client) ? kShortGrace : kGrace);
    } else if (is_group && !client.group.joined.contains(ended->host) && !stop_ && !failure_) {
      on_start_failure("acclaunch on " + ended->host, ended->reason);
    }
  }
}

void StartingJob::on_start_failure(const std::string& name, const std::string& reason) {
  const std::string text = name + " cannot be started: " + reason;
  say(text);
  end_job(kConfigStatus, text);
}

/// On machines that wait for one which does not come.
void StartingJob::end_job(int exit_status, const std::string& reason) {
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
  limit(plan_.shutdown_timeout + Supervisor::kTimeToDie + kGrace);
}

void StartingJob::on_signal(int signal) {
  if (signal == SIGCHLD) {
    std::vector<pid_t> pids;
    for (const Client& client : clients_) {
      if (client.process) {
        pids.push_back(client.process->pid());
      }
    }
    reap_orphans(pids);
  } else if (is_stop_signal(signal) || std::ranges::count(plan_.stop_signals, signal) > 0) {
    stop(signal);
  } else if (!is_own_signal(signal)) {
    send_all(control::Signal{signal});
  }
}

/// The first one is for the machines to act upon; a second one kills.
void StartingJob::stop(int signal) {
  const bool insists = stop_ || failure_;
  if (!stop_) {
    stop_ = signal;
  }
  if (insists && plan_.manager.signals_everybody) {
    return;
  }
  const std::string what = "stopped by " + signal_name(signal);
  if (insists) {
    say(what + " while ending: killing the workers on all machines");
    send_all(control::Insist{});
    signal_uncontrolled(SIGKILL);
    limit(Supervisor::kTimeToDie + kGrace / 2);
  } else {
    say(what + ": ending the job on all machines");
    send_all(control::Signal{signal});
    signal_uncontrolled(SIGTERM);
    limit(plan_.shutdown_timeout + Supervisor::kTimeToDie + kGrace);
  }
  cut_unstarted();
}

/// As for any program, the end of who reads its output is its own.
void StartingJob::on_lost(const Lost& lost) {
  if (lost.error == EPIPE && !stop_ && !failure_ && !is_over_) {
    end_job(128 + SIGPIPE,
            std::string("the reader of ") + (lost.is_stderr ? "stderr" : "stdout") + " has gone");
    cut_unstarted();
  }
}

void StartingJob::beat() {
  for (Client& client : clients_) {
    if (client.input && client.command.is_controlled && !client.input->is_waiting()) {
      client.input->send(control::encode(control::Beat{}));
    }
  }
  beat_.expires_after(control::kBeatInterval);
  beat_.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      beat();
    }
  });
}

void StartingJob::send_all(const control::Message& message) {
  for (Client& client : clients_) {
    if (client.input && client.command.is_controlled) {
      client.input->send(control::encode(message));
    }
  }
}

/// The machines see the end of their connections.
void StartingJob::signal_uncontrolled(int signal) {
  for (Client& client : clients_) {
    if (!client.command.is_controlled && client.process && !client.end) {
      client.process->signal(signal);
    }
  }
}

/// One that has not been begun is not begun any more.
void StartingJob::cut(Client& client) {
  client.was_cut = true;
  if (client.process) {
    client.process->signal(SIGKILL);
  } else {
    client.end = {ClientEnd::Kind::lost, 1, ""};
  }
}

void StartingJob::cut_unstarted() {
  if (plan_.start->means != StartPlan::Means::ssh) {
    return;
  }
  for (Client& client : clients_) {
    if (!client.end && !client.heard.started) {
      cut(client);
    }
  }
  close_when_all_ended();
}

void StartingJob::cut_silent() {
  if (output_.is_blocked()) {  // they may wait for the reader of what they say
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
        const bool is_one = plan_.start->means == StartPlan::Means::ssh;
        say(client.command.name + (is_one ? " does" : " do") +
            " not end: what runs there cannot be ended from here, and ends itself when it finds "
            "its connection cut");
      }
      cut(client);
    }
  }
}

/// srun waits until Slurm has found the machine lost as well.
bool StartingJob::waits_in_vain(const Client& client) const {
  return plan_.start->means == StartPlan::Means::srun && client.group.waits_in_vain();
}

/// It cancels its step, so that nothing of it is left when the machine comes back.
void StartingJob::end_waiting(Client& client) {
  std::string hosts;
  for (const std::string& host : client.group.lost) {
    hosts += (hosts.empty() ? "" : ", ") + host;
  }
  say("all machines have ended but what is lost (" + hosts + "): not waiting for srun any longer");
  client.was_cut = true;
  client.process->signal(SIGTERM);
  limit(kShortGrace);
}

void StartingJob::limit(std::chrono::milliseconds time) {
  limit_.expires_after(time);
  limit_.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      cut_silent();
    }
  });
}

}  // namespace acc::launcher
