#include "acc/base/error.hpp"
#include "rounds/membership.hpp"
#include "rounds/rank_order.hpp"
#include "rounds/sentences.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

// How rounds are formed and how they end.
//
// A round ends in one of these ways:
// - All machines report success: the job is over.
// - A worker fails: all machines stop their workers. The job restarts if restarts are left, else it
//   is over.
// - A machine is lost. An elastic job, or one for which another machine waits, restarts without
//   using up a restart; otherwise one is used up. A static job is over.
// - A machine joins an elastic job that has room: restart, which does not use up a restart.
// - A user or the system stops a machine: an elastic job with enough other machines continues
//   without it, any other job is over.
// Machines get JobTimes::settle to stop their workers and report.
namespace acc::rendezvous::rounds {
namespace {

using Cause = AttemptEnd::Cause;

}  // namespace

/// Number of machines without which no round is formed.
int Membership::needed() const {
  return terms_.ranks_are_given ? terms_.num_machines : terms_.min_machines;
}

int Membership::num_in_attempt() const {
  return agents_.count(State::running) + agents_.count(State::reported);
}

/// Forms a round when enough machines wait.
void Membership::gather() {
  const int waiting = agents_.count(State::waiting);
  if (waiting < needed()) {
    if (!std::exchange(is_short_, true)) {
      short_since_ = now_;
      most_waiting_ = 0;
    }
    most_waiting_ = std::max(most_waiting_, waiting);
    last_call_.reset();
    // A restart that lost too many machines waits for new ones like the first round.
    needs_last_call_ = needs_last_call_ || agents_.count(State::settled) == 0;
    return;
  }
  is_short_ = false;
  if (agents_.count(State::settled) > 0) {
    return;  // machines of the last round keep their places until they rejoin or time out
  }
  if (needs_last_call_ && waiting < terms_.num_machines) {
    last_call_ = last_call_.value_or(now_ + times_.last_call);
    if (now_ < *last_call_) {
      return;
    }
  }
  form();
}

/// Forms a round of the waiting machines: assigns ranks and sends Formed to each. Machines that do
/// not fit remain waiting as spares.
void Membership::form() {
  const auto members =
      in_rank_order(agents_.in({State::waiting}), static_cast<std::size_t>(terms_.num_machines));
  if (const std::string reason = wrong_total(members, terms_); !reason.empty()) {
    for (Agent* agent : agents_.in({State::waiting})) {
      drop(*agent, Dropped::Why::config, reason);
    }
    return;
  }
  phase_ = Phase::running;
  attempt_ = Attempt(members);
  end_.reset();
  is_force_stopped_ = false;
  last_call_.reset();
  // Machine 0 serves the workers' store: its address, port and secret are those of the round.
  const Machine& first = members.front()->machine;
  has_formed_ = true;
  Formed formed{
      {next_round_++, restart_count_, 0, {}, first.address, first.store_port, first.secret}};
  for (const Agent* agent : members) {
    formed.round.local_world_sizes.push_back(agent->machine.local_world_size);
  }
  for (int rank = 0; Agent * agent : members) {
    agent->rank = formed.round.machine_rank = rank++;
    agents_.move_to(*agent, State::running);
    look_later(*agent);
    send(agent->id, formed);
  }
  for (Agent* agent : agents_.in({State::waiting})) {
    tell_what_it_waits_for(*agent);
  }
}

/// Ends the attempt for a restart with `newcomer` if the running round has room. Not if a machine
/// has already reported success: the job is then about to finish, and the newcomer waits as a spare
/// in case a machine is lost.
void Membership::make_room_for(const Agent& newcomer) {
  const int running = num_in_attempt();
  if (phase_ == Phase::running && running < terms_.num_machines && !attempt_.has_report()) {
    const int next = std::min(running + agents_.count(State::waiting), terms_.num_machines);
    end_attempt({.host = newcomer.machine.host,
                 .exit_status = 0,
                 .restarts = true,
                 .cause = Cause::membership,
                 .reason = fmt::format(
                     "{} has joined: starting again with {} machines",
                     name_of(newcomer.machine.machine_rank, newcomer.machine.host), next)});
  }
}

/// End of the job because a machine is lost.
AttemptEnd Membership::lost(int rank, const std::string& why) const {
  const std::string& host = attempt_.host(rank);
  return {rank,
          host,
          1,
          false,
          Cause::other,
          fmt::format("the connection to {} is lost: {}", name_of(rank, host), why)};
}

/// Handles the loss of a machine of the round. A machine that has reported is not needed any more.
void Membership::lose_from_attempt(int rank, bool had_reported, const std::string& why) {
  attempt_.lose(rank);
  if (had_reported) {
    return;
  }
  const std::string& host = attempt_.host(rank);
  const AttemptEnd loss{rank,
                        host,
                        1,
                        true,
                        Cause::membership,
                        fmt::format("{} is lost: {}", name_of(rank, host), why)};
  if (phase_ == Phase::ending) {
    if (terms_.ranks_are_given && end_->restarts) {
      change_end(lost(rank, why));  // no machine can take its rank: the restart is cancelled
    } else if (is_elastic() && end_->cause == Cause::worker && can_go_on()) {
      // Workers of other machines failed because their connections to this machine broke. The loss
      // is the cause, so the restart does not count as one after a failure.
      change_end(loss);
      uses_restart_ = false;
    }
    return;
  }
  const bool is_replaced = is_elastic() || can_go_on();
  if (terms_.ranks_are_given || (!is_replaced && !may_restart())) {
    return end_attempt(lost(rank, why));
  }
  end_attempt(loss);
  uses_restart_ = !is_replaced;
}

/// Ends the running attempt: all its machines must stop their workers and report.
void Membership::end_attempt(AttemptEnd end) {
  phase_ = Phase::ending;
  settle_by_ = now_ + times_.settle;
  uses_restart_ = end.restarts && end.cause == Cause::worker;
  end_ = std::move(end);
  send_all(agents_.in({State::running, State::reported}), Ends{*end_});
}

void Membership::change_end(AttemptEnd end) {
  end_ = std::move(end);
  send_all(agents_.in({State::running, State::reported}), Ends{*end_});
}

/// A machine ends the attempt. The first end of a round wins. A later one has an effect only if a
/// restart is planned and the later one forbids it: it cancels the restart or, if its machine was
/// stopped and can be spared, removes that machine from the job.
void Membership::hear(Agent& agent, End&& message) {
  if (agent.state == State::done || agent.state == State::leaving) {
    return;
  }
  // The server fills in the origin and decides about the restart: agents are not trusted with
  // either.
  AttemptEnd end = std::move(message.end);
  end.host = agent.machine.host;
  end.machine_rank = agent.rank.value_or(-1);
  std::ranges::replace(end.reason, '\n', ' ');
  const bool may_repeat = end.restarts && end.cause == Cause::worker;
  end.restarts = may_repeat && may_restart();
  if (!agent.rank) {
    return dismiss(agent, std::move(end));  // it has never been in a round: others are unaffected
  }
  const bool is_restarting =
      phase_ == Phase::gathering || (phase_ == Phase::ending && end_->restarts);
  if (phase_ != Phase::running && (may_repeat || !is_restarting)) {
    return;  // the attempt has ended before
  }
  if (end.cause == Cause::stop && can_spare(agent)) {
    leave_alone(agent, std::move(end));
  } else if (phase_ == Phase::running) {
    end_attempt(std::move(end));
  } else if (phase_ == Phase::ending) {
    // A failed worker stays the reason of the end; only the restart is cancelled.
    if (end_->cause == Cause::worker) {
      end = *end_;
      end.restarts = false;
    }
    change_end(std::move(end));
  } else {
    finish({std::move(end), {}, RoundResult::Next::finished});
  }
}

/// True if the connected machines suffice for another round.
bool Membership::can_go_on() const {
  return num_in_attempt() + agents_.count(State::waiting) + agents_.count(State::settled) >=
         needed();
}

/// True if the job can continue without this machine. The server's own machine is never spared: the
/// rendezvous ends with it.
bool Membership::can_spare(const Agent& agent) const {
  const int here = num_in_attempt() + agents_.count(State::waiting) + agents_.count(State::settled);
  return is_elastic() && !agent.machine.serves && here - 1 >= needed();
}

/// Lets one machine leave an elastic job. The others restart without it; it gets its own end.
void Membership::leave_alone(Agent& agent, AttemptEnd end) {
  if (agent.state != State::running) {
    return dismiss(agent, std::move(end));
  }
  agents_.move_to(agent, State::leaving);
  agents_.keep_own_end(agent, end);
  send(agent.id, Ends{end});
  if (phase_ == Phase::running) {
    end.restarts = true;
    end.cause = Cause::membership;
    end.reason = fmt::format("{} has left: {}", name_of(agent.rank, end.host), end.reason);
    end_attempt(std::move(end));
  }
}

/// Ends the job for this agent only.
void Membership::dismiss(Agent& agent, AttemptEnd end) {
  give_rank_back(agent);
  agents_.move_to(agent, State::done);
  look_later(agent);
  send(agent.id, Settled{{std::move(end), {}, RoundResult::Next::finished}});
}

void Membership::hear(Agent& agent, Report&& message) {
  if (agent.state == State::done) {
    return;  // the round was closed without this report (settle_without_the_slow)
  }
  if (agent.state != State::running && agent.state != State::leaving) {
    throw Error(Errc::protocol, "an agent sent Report while it has no running workers");
  }
  const int rank = *agent.rank;
  if (message.failed && phase_ == Phase::running) {
    end_attempt({rank, agent.machine.host, 1, may_restart(), Cause::worker,
                 fmt::format("the workers of {} failed", name_of(rank, agent.machine.host))});
  }
  if (agent.state == State::leaving) {
    RoundResult round_result{*agent.own_end, {{rank, agent.machine.host, message.text}}};
    agents_.move_to(agent, State::done);
    send(agent.id, Settled{std::move(round_result)});
  } else {
    agents_.move_to(agent, State::reported);
  }
  attempt_.report(rank, std::move(message));
}

/// Closes the round after all its machines have reported or are lost: sends the round result, and
/// starts gathering for the next round or ends the job.
void Membership::settle() {
  if (!end_) {
    return finish({});
  }
  if (!end_->restarts) {
    return finish({end_, attempt_.words(), RoundResult::Next::finished});
  }
  restart_count_ += uses_restart_ ? 1 : 0;
  phase_ = Phase::gathering;
  needs_last_call_ = false;  // the machines of the round are here: no wait for others
  const auto members = agents_.in({State::reported});
  send_all(members, Settled{{end_, attempt_.words(), RoundResult::Next::next_round}});
  attempt_.forget_reports();
  for (Agent* agent : members) {
    agents_.move_to(*agent, State::settled);
  }
  for (Agent* agent : agents_.in({State::settled, State::waiting})) {
    agent->waits_since = now_;  // join timeouts start now, for spares, too
    look_later(*agent);
  }
}

/// Closes the round after JobTimes::settle although machines have not reported. A restart would run
/// next to old workers that may still hold their GPUs, so the job ends.
void Membership::settle_without_the_slow() {
  const int slow = attempt_.first_awaited();
  if (end_->restarts) {
    end_ = AttemptEnd{slow,
                      attempt_.host(slow),
                      1,
                      false,
                      Cause::other,
                      fmt::format("the workers of {} did not stop in time for the restart",
                                  name_of(slow, attempt_.host(slow)))};
  }
  for (Agent* agent : agents_.in({State::leaving})) {
    dismiss(*agent, *agent->own_end);
  }
  finish({end_, attempt_.words(), RoundResult::Next::finished});
}

/// Ends the job: sends the round result to its machines and drops waiting machines that were never
/// in a round. Agents stay in state done until they disconnect.
void Membership::finish(RoundResult round_result) {
  phase_ = Phase::over;
  over_since_ = now_;
  refuses_late_ = is_elastic();
  // Frees what a finished job does not need: terms to compare and reports.
  founding_bytes_ -= bytes_of(terms_.agreed);
  terms_.agreed = {};
  attempt_ = {};
  for (Agent* agent : agents_.in({State::waiting})) {
    if (!agent->rank) {
      drop(*agent, Dropped::Why::over, fmt::format("the job '{}' has ended", run_id_));
    }
  }
  const auto members =
      agents_.in({State::waiting, State::settled, State::running, State::reported});
  send_all(members, Settled{std::move(round_result)});
  for (Agent* agent : members) {
    agents_.move_to(*agent, State::done);
    look_later(*agent);
  }
}

}  // namespace acc::rendezvous::rounds
