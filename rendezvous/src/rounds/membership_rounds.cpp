#include "acc/base/error.hpp"
#include "rounds/membership.hpp"
#include "rounds/rank_order.hpp"
#include "rounds/sentences.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

// How rounds are formed and how they end.
namespace acc::rendezvous::rounds {
namespace {

using Cause = AttemptEnd::Cause;

}  // namespace

int Membership::needed() const {
  return terms_.ranks_are_given ? terms_.num_machines : terms_.min_machines;
}

int Membership::num_in_attempt() const {
  return agents_.count(State::running) + agents_.count(State::reported);
}

void Membership::gather() {
  const int waiting = agents_.count(State::waiting);
  if (waiting < needed()) {
    if (!std::exchange(is_short_, true)) {
      short_since_ = now_;
      most_waiting_ = 0;
    }
    most_waiting_ = std::max(most_waiting_, waiting);
    last_call_.reset();
    needs_last_call_ = needs_last_call_ || agents_.count(State::settled) == 0;
    return;
  }
  is_short_ = false;
  if (agents_.count(State::settled) > 0) {
    return;  // they keep their places
  }
  if (needs_last_call_ && waiting < terms_.num_machines) {
    last_call_ = last_call_.value_or(now_ + times_.last_call);
    if (now_ < *last_call_) {
      return;
    }
  }
  form();
}

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
  is_insisted_ = false;
  last_call_.reset();
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

/// A machine that comes while fewer than possible run; where workers have succeeded there is no
/// other round to wait for, unless one is lost.
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

AttemptEnd Membership::lost(int rank, const std::string& why) const {
  const std::string& host = attempt_.host(rank);
  return {rank,
          host,
          1,
          false,
          Cause::other,
          fmt::format("the connection to {} is lost: {}", name_of(rank, host), why)};
}

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
      change_end(lost(rank, why));
    } else if (is_elastic() && end_->cause == Cause::worker && can_go_on()) {
      change_end(loss);  // which explains why workers of others have failed
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

void Membership::hear(Agent& agent, End&& message) {
  if (agent.state == State::done || agent.state == State::leaving) {
    return;
  }
  AttemptEnd end = std::move(message.end);
  end.host = agent.machine.host;
  end.machine_rank = agent.rank.value_or(-1);
  std::ranges::replace(end.reason, '\n', ' ');
  const bool may_repeat = end.restarts && end.cause == Cause::worker;
  end.restarts = may_repeat && may_restart();
  if (!agent.rank) {
    return dismiss(agent, std::move(end));  // it has no part in any round
  }
  const bool is_restarting =
      phase_ == Phase::gathering || (phase_ == Phase::ending && end_->restarts);
  if (phase_ != Phase::running && (may_repeat || !is_restarting)) {
    return;  // has been ended before
  }
  if (end.cause == Cause::stop && can_spare(agent)) {
    leave_alone(agent, std::move(end));
  } else if (phase_ == Phase::running) {
    end_attempt(std::move(end));
  } else if (phase_ == Phase::ending) {
    // What was first stays the reason, where workers are to blame.
    if (end_->cause == Cause::worker) {
      end = *end_;
      end.restarts = false;
    }
    change_end(std::move(end));
  } else {
    finish({std::move(end), {}, Settlement::Next::finished});
  }
}

/// Those who are here, or rejoin, make up a round.
bool Membership::can_go_on() const {
  return num_in_attempt() + agents_.count(State::waiting) + agents_.count(State::settled) >=
         needed();
}

bool Membership::can_spare(const Agent& agent) const {
  const int here = num_in_attempt() + agents_.count(State::waiting) + agents_.count(State::settled);
  return is_elastic() && !agent.machine.serves && here - 1 >= needed();
}

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

/// The job is over for this agent.
void Membership::dismiss(Agent& agent, AttemptEnd end) {
  give_rank_back(agent);
  agents_.move_to(agent, State::done);
  look_later(agent);
  send(agent.id, Settled{{std::move(end), {}, Settlement::Next::finished}});
}

void Membership::hear(Agent& agent, Report&& message) {
  if (agent.state == State::done) {
    return;  // it was too late
  }
  if (agent.state != State::running && agent.state != State::leaving) {
    throw Error(Errc::protocol, "an agent reports whose workers do not run");
  }
  const int rank = *agent.rank;
  if (message.failed && phase_ == Phase::running) {
    end_attempt({rank, agent.machine.host, 1, may_restart(), Cause::worker,
                 fmt::format("the workers of {} failed", name_of(rank, agent.machine.host))});
  }
  if (agent.state == State::leaving) {
    Settlement settlement{*agent.own_end, {{rank, agent.machine.host, message.text}}};
    agents_.move_to(agent, State::done);
    send(agent.id, Settled{std::move(settlement)});
  } else {
    agents_.move_to(agent, State::reported);
  }
  attempt_.report(rank, std::move(message));
}

/// All machines of the round have reported or are gone.
void Membership::settle() {
  if (!end_) {
    return finish({});
  }
  if (!end_->restarts) {
    return finish({end_, attempt_.words(), Settlement::Next::finished});
  }
  restart_count_ += uses_restart_ ? 1 : 0;
  phase_ = Phase::gathering;
  needs_last_call_ = false;
  const auto members = agents_.in({State::reported});
  send_all(members, Settled{{end_, attempt_.words(), Settlement::Next::next_round}});
  attempt_.forget_reports();
  for (Agent* agent : members) {
    agents_.move_to(*agent, State::settled);
  }
  for (Agent* agent : agents_.in({State::settled, State::waiting})) {
    agent->waits_since = now_;
    look_later(*agent);
  }
}

void Membership::settle_without_the_slow() {
  const int slow = attempt_.first_awaited();
  if (end_->restarts) {
    end_ = AttemptEnd{slow,
                      attempt_.host(slow),
                      1,
                      false,
                      Cause::other,
                      fmt::format("the workers of {} did not end for the restart",
                                  name_of(slow, attempt_.host(slow)))};
  }
  for (Agent* agent : agents_.in({State::leaving})) {
    dismiss(*agent, *agent->own_end);
  }
  finish({end_, attempt_.words(), Settlement::Next::finished});
}

void Membership::finish(Settlement settlement) {
  phase_ = Phase::over;
  over_since_ = now_;
  // Nobody is compared, and nothing is reported any more.
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
  send_all(members, Settled{std::move(settlement)});
  for (Agent* agent : members) {
    agents_.move_to(*agent, State::done);
    look_later(*agent);
  }
}

}  // namespace acc::rendezvous::rounds
