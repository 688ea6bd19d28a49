// SPDX-License-Identifier: Apache-2.0
#include "rounds_simulation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

// The machines of a simulation, and their faults.
namespace acc::rendezvous::rounds::test {
namespace {

using namespace std::chrono_literals;
using Cause = AttemptEnd::Cause;

constexpr JobTimes::Milliseconds kWelcomeLimit{9'999};

}  // namespace

std::string_view Simulation::name_of(State state) {
  constexpr std::array kNames{"off",      "waiting", "running", "ending",
                              "reported", "between", "alone",   "finished"};
  return kNames.at(static_cast<std::size_t>(state));
}

// A machine, which behaves like the launcher's agent.

void Simulation::change(Machine& machine, State state) {
  note(fmt::format("{} is {}", machine.enter.machine.host, name_of(state)));
  machine.state = state;
  ++machine.turn;
}

void Simulation::plan(Machine& machine, Milliseconds delay, void (Simulation::*step)(Machine&)) {
  after(delay, [this, &machine, step, turn = machine.turn] {
    if (machine.turn != turn) {
      return;
    }
    if (now_ < machine.frozen_until) {
      return plan(machine, std::chrono::ceil<Milliseconds>(machine.frozen_until - now_), step);
    }
    (this->*step)(machine);
  });
}

/// Opens a connection. An agent of a server that recovers has the same seat on all of them.
AgentId Simulation::connect(Machine& machine) {
  const auto number = static_cast<std::uint64_t>(&machine - machines_.data());
  machine.link = next_id_++;
  machine.silence_limit = kWelcomeLimit;
  machine.last_heard = now_;
  links_[machine.link] = {.machine = static_cast<int>(number), .life = life_};
  const auto pid = static_cast<std::uint64_t>(machine.enter.machine.pid);
  owners_[machine.link] = {static_cast<int>(number), recovers_ ? number << 32 | pid : machine.link};
  if (recovers_) {
    machine.enter.agent = fmt::format("{:016x}{:016x}", number, pid);
  }
  return machine.link;
}

void Simulation::start(Machine& machine) {
  if (is_down_) {
    return plan(machine, up_to(1s), &Simulation::start);
  }
  change(machine, State::waiting);
  machine.round.reset();
  machine.own_end.reset();
  machine.known_end.reset();
  connect(machine);
  say(machine, machine.enter);
  watch(machine, machine.link, kWelcomeLimit);
}

/// Connects again to a server that recovers, and repeats what it may not have received.
void Simulation::come_back(Machine& machine, int pid) {
  const bool is_member =
      is_in_round(machine) || machine.state == State::waiting || machine.state == State::between;
  if (machine.link != 0 || machine.enter.machine.pid != pid || !is_member) {
    return;
  }
  if (is_down_ || now_ < machine.frozen_until) {
    return after(up_to(1s) + 1ms, [this, &machine, pid] { come_back(machine, pid); });
  }
  connect(machine);
  Enter enter = machine.enter;
  if (is_in_round(machine)) {
    enter.round = machine.round->round;
  } else if (machine.state == State::between) {
    change(machine, State::waiting);
  }
  say(machine, enter);
  if (is_in_round(machine) && machine.own_end && !machine.known_end) {
    say(machine, End{*machine.own_end});
  }
  if (machine.state == State::reported) {
    say(machine, Report{false, "again"});
  }
  watch(machine, machine.link, kWelcomeLimit);
}

/// Sends heartbeats, and checks the heartbeat timeout of the server.
void Simulation::watch(Machine& machine, AgentId link, Milliseconds limit) {
  if (machine.link != link || limit != machine.silence_limit) {
    return;
  }
  if (now_ >= machine.frozen_until) {
    if (now_ - machine.last_heard >= limit) {
      note(machine.enter.machine.host + " has received no heartbeat from the server");
      if (recovers_) {
        say(machine, Away{});
      }
      return lose_server(machine);
    }
    if (limit != kWelcomeLimit) {
      say(machine, Beat{});
    }
  }
  after(limit / 5, [this, &machine, link, limit] { watch(machine, link, limit); });
}

void Simulation::say(Machine& machine, AgentMessage message) {
  if (recovers_ && machine.link == 0) {
    return;  // sent by `come_back`
  }
  links_.at(machine.link).to_server.emplace_back(std::move(message));
  after(latency(), [this, id = machine.link] { arrive_at_server(id); });
}

void Simulation::hang_up(Machine& machine) {
  const AgentId id = std::exchange(machine.link, 0);
  if (const auto found = links_.find(id); found != links_.end()) {
    found->second.to_server.emplace_back(std::nullopt);
    after(latency(), [this, id] { arrive_at_server(id); });
  }
}

void Simulation::hear(Machine& machine, ServerMessage message) {
  if (machine.state == State::finished && !std::holds_alternative<Beat>(message) &&
      !std::holds_alternative<Dropped>(message)) {
    violated(machine.enter.machine.host + " received a message after the last one");
  }
  if (const auto* welcome = std::get_if<Welcome>(&message)) {
    machine.silence_limit = welcome->silence_limit;
    watch(machine, machine.link, machine.silence_limit);
  } else if (const auto* formed = std::get_if<Formed>(&message)) {
    hear_formed(machine, formed->round);
  } else if (const auto* ends = std::get_if<Ends>(&message)) {
    hear_ends(machine, ends->end);
  } else if (const auto* settled = std::get_if<Settled>(&message)) {
    hear_settled(machine, settled->round_result);
  } else if (const auto* dropped = std::get_if<Dropped>(&message)) {
    note(machine.enter.machine.host + " is dropped: " + dropped->reason);
    if (dropped->why == Dropped::Why::lost && now_ >= calm_from_) {
      violated(machine.enter.machine.host + " sends heartbeats and is dropped as lost");
    }
    if (recovers_ && dropped->why == Dropped::Why::lost) {
      if (machine.round) {
        machine.enter.rounds_before = machine.round->round + 1;
      }
      hang_up(machine);
      change(machine, State::alone);
      plan(machine, up_to(3s), &Simulation::start);
    } else if (dropped->why != Dropped::Why::lost) {
      change(machine, State::finished);
      hang_up_and_restart(machine);
    }
  }
}

/// A user starts a job that has ended again.
void Simulation::hang_up_and_restart(Machine& machine) {
  hang_up(machine);
  if (has_faults_ && happens(2)) {
    ++machine.enter.machine.pid;
    plan(machine, up_to(40s), &Simulation::start_anew);
  }
}

void Simulation::start_anew(Machine& machine) {
  if (has_faults_) {
    start(machine);
  }
}

void Simulation::hear_formed(Machine& machine, const Round& round) {
  if (machine.state != State::waiting) {
    violated(machine.enter.machine.host + " did not wait for a round, and is in one");
  }
  if (recovers_) {
    seat_of(machine.link).is_taken = true;
    // No rank is given twice, and no round is formed twice, across restarts of the server. A
    // machine that has hung may hear of its round after the server has dropped it and the job has
    // begun anew.
    for (const Machine& other : machines_) {
      if (&other == &machine || seat_of(machine.link).is_gone || other.job != machine.job ||
          !is_in_round(other) || !other.round || other.link == 0 ||
          other.round->round != round.round || seat_of(other.link).is_gone ||
          !seat_of(other.link).is_taken || links_.at(other.link).is_cut) {
        continue;
      }
      if (other.round->machine_rank == round.machine_rank ||
          as_seen_by(round.machine_rank, *other.round) != round) {
        violated(fmt::format("{} and {} are in different rounds {}, or have the same rank",
                             machine.enter.machine.host, other.enter.machine.host, round.round));
      }
    }
    if (round.round < machine.enter.rounds_before) {
      violated(fmt::format("{} is in round {} again", machine.enter.machine.host, round.round));
    }
  }
  machine.round = round;
  machine.own_end.reset();
  machine.known_end.reset();
  change(machine, State::running);
  machine.succeeded = machine.last_end = false;
  if (workers_succeed_ || (has_faults_ && happens_to_one_of(4))) {
    plan(machine, up_to(20s), &Simulation::succeed);
  } else if (has_faults_ && happens_to_one_of(6)) {
    plan(machine, up_to(20s), &Simulation::fail);
  }
}

void Simulation::hear_ends(Machine& machine, const AttemptEnd& end) {
  if (recovers_ && machine.known_end == end) {
    return;  // repeated on a new connection
  }
  machine.known_end = end;
  const bool explains_failures = end.restarts && end.cause == AttemptEnd::Cause::membership;
  if (!is_in_round(machine) || (machine.last_end && !explains_failures)) {
    violated(machine.enter.machine.host + " received Ends without a round, or twice");
  }
  if (end.cause == AttemptEnd::Cause::join && (!end.restarts || end.exit_status != 0)) {
    violated(machine.enter.machine.host + " is told that a machine joins, and of a failure");
  }
  machine.last_end = !end.restarts;
  if (machine.state == State::running) {
    end_workers(machine);
  }
}

void Simulation::hear_settled(Machine& machine, const RoundResult& round_result) {
  if (round_result.next == RoundResult::Next::finished) {
    change(machine, State::finished);
    plan(machine, up_to(2s), &Simulation::hang_up_and_restart);
    return;
  }
  if (machine.state != State::reported || machine.last_end) {
    violated(machine.enter.machine.host + " is to join again, and has not reported or was over");
  }
  if (recovers_) {
    machine.enter.rounds_before = machine.round->round + 1;
  }
  change(machine, State::between);
  if (!has_faults_ || !happens_to_one_of(50)) {  // otherwise it hangs
    plan(machine, up_to(500ms), &Simulation::rejoin);
  }
}

/// Ends its workers, then connects again.
void Simulation::lose_server(Machine& machine) {
  hang_up(machine);
  if (machine.state == State::finished) {
    return;
  }
  if (recovers_ && machine.state != State::alone && machine.state != State::off) {
    return after(up_to(500ms),
                 [this, &machine, pid = machine.enter.machine.pid] { come_back(machine, pid); });
  }
  change(machine, State::alone);
  plan(machine, up_to(3s), &Simulation::start);
}

void Simulation::fail(Machine& machine) {
  if (has_faults_) {
    machine.own_end = {.exit_status = 9, .restarts = true, .reason = "a worker failed"};
    say(machine, End{*machine.own_end});
    end_workers(machine);
  }
}

void Simulation::succeed(Machine& machine) {
  machine.succeeded = true;
  change(machine, State::reported);
  say(machine, Report{false, "fine"});
}

void Simulation::end_workers(Machine& machine) {
  change(machine, State::ending);
  plan(machine, has_faults_ && happens_to_one_of(30) ? 200s : up_to(3s), &Simulation::report);
}

void Simulation::report(Machine& machine) {
  change(machine, State::reported);
  say(machine, Report{happens(2), "ended"});
}

void Simulation::rejoin(Machine& machine) {
  change(machine, State::waiting);
  say(machine, Rejoin{static_cast<std::uint16_t>(1 + draw(65535))});
}

// Faults.

void Simulation::meddle() {
  if (!has_faults_) {
    return;
  }
  if (recovers_ && !is_down_ && happens(30)) {
    crash();
  } else if (recovers_ && !is_down_ && !written_at_cut_ && happens(60)) {
    cut_off();
  } else if (happens(40)) {
    const Milliseconds pause = happens(2) ? up_to(10s) : up_to(200ms);
    note(fmt::format("the server is suspended for {} ms", pause.count()));
    server_stalled_until_ = now_ + pause;
  } else if (!is_down_ && !drain_asked_ && happens(jobs_->is_draining() ? 10 : 60)) {
    drain(!jobs_->is_draining());
  } else if (happens(200)) {
    note("an hour is skipped");
    std::priority_queue<Event> later;
    while (!events_.empty()) {
      Event event = events_.top();
      events_.pop();
      event.at = std::max(event.at, now_ + 1h);
      later.push(std::move(event));
    }
    events_ = std::move(later);
    now_ += 1h;
  } else {
    disturb(machines_[draw(machines_.size())]);
  }
  const auto rate = static_cast<int>(std::min<std::size_t>(machines_.size(), 100));
  after(up_to(pause_between_faults_) / rate, [this] { meddle(); });
}

void Simulation::disturb(Machine& machine) {
  const std::string& host = machine.enter.machine.host;
  const bool is_on = machine.state != State::off && machine.state != State::finished;
  const auto link = links_.find(machine.link);
  switch (draw(10)) {
    case 0:
    case 1:  // a new process, usually after the last one has ended
      if (!is_on) {
        note(host + " is started");
        hang_up(machine);
        ++machine.enter.machine.pid;
        plan(machine, 0ms, &Simulation::start);
      }
      break;
    case 2:
      if (is_on) {
        note(host + " crashes");
        hang_up(machine);
        change(machine, State::off);
      }
      break;
    case 3:
      if (is_on && link != links_.end()) {
        note(host + " loses its power");
        link->second.is_cut = true;
        machine.link = 0;
        change(machine, State::off);
      }
      break;
    case 4:
      if (link != links_.end()) {
        note(host + " is cut off");
        link->second.is_cut = true;
      }
      break;
    case 5:
      note(host + " hangs for a while");
      machine.frozen_until = now_ + up_to(20s);
      break;
    case 6:
      if (machine.state == State::running || machine.state == State::ending) {
        say(machine, ForceStop{});
      }
      break;
    case 7:
      if (machine.state == State::running) {
        fail(machine);
      }
      break;
    case 8:
      if (happens(4)) {
        stop(machine);
      }
      break;
    default:
      if (link != links_.end() && is_on) {
        note(host + " is disconnected");
        lose_server(machine);
      }
  }
}

/// A user or the system stops the machine.
void Simulation::stop(Machine& machine) {
  const bool is_in_round = machine.state == State::running || machine.state == State::ending ||
                           machine.state == State::reported || machine.state == State::between;
  if (is_in_round) {
    note(machine.enter.machine.host + " is stopped");
    machine.own_end = {.exit_status = 143, .cause = Cause::stop, .reason = "stopped"};
    say(machine, End{*machine.own_end});
  } else if (machine.state == State::waiting) {
    note(machine.enter.machine.host + " leaves");
    say(machine, Leave{});
    hang_up(machine);
    change(machine, State::finished);
  }
}

}  // namespace acc::rendezvous::rounds::test
