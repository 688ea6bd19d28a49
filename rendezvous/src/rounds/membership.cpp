#include "rounds/membership.hpp"

#include "acc/base/error.hpp"
#include "rounds/sentences.hpp"

#include <algorithm>
#include <utility>

// Events, time limits and messages of a job. Admission of agents is in membership_admission.cpp;
// how rounds are formed and end is in membership_rounds.cpp.
namespace acc::rendezvous::rounds {
namespace {

// Interval of the Waiting messages to an agent.
constexpr std::chrono::seconds kProgressInterval{10};
// Limit of JobTimes::close, so that finished jobs do not occupy memory for long.
constexpr JobTimes::Milliseconds kLongestClose = std::chrono::hours(1);

// Estimated memory of a job in all containers of the server, without its strings.
constexpr std::size_t kJobBytes = 2048;
// Estimated memory of one node of a std::map or std::set.
constexpr std::size_t kNodeBytes = 64;

Time next_telling(const Agent& agent) {
  return agent.told_at.value_or(agent.waits_since) + kProgressInterval;
}

}  // namespace

Membership::Membership(std::string run_id, Terms terms, JobTimes times)
    : run_id_(std::move(run_id)), terms_(std::move(terms)), times_(times) {
  times_.close = std::min(times_.close, kLongestClose);
  if (terms_.ranks_are_given) {
    missing_ = RankSet(terms_.num_machines);
  }
}

std::size_t Membership::bytes_of(const Agreed& agreed) {
  std::size_t bytes = 0;
  for (const auto& [name, value] : agreed) {
    bytes += sizeof(Agreed::value_type) + name.size() + value.size();
  }
  return bytes;
}

std::size_t Membership::bytes_to_found(const Enter& enter) {
  // The run id is stored three times (Job, Jobs::by_run_id_, Membership), and founder_ is a copy of
  // the agent's machine.
  return kJobBytes + 3 * enter.run_id.size() + bytes_of(enter.terms.agreed) +
         enter.machine.host.size() + enter.machine.address.size();
}

std::size_t Membership::bytes() const {
  const std::size_t nodes = claims_.size() + missing_.num_runs() + refused_ranks_.size();
  return founding_bytes_ + agents_.bytes() + attempt_.bytes() + kNodeBytes * nodes +
         refused_bytes_ + refusal_.size() + (end_ ? end_->reason.size() : 0);
}

void Membership::receive(AgentId id, AgentMessage message, Time now, Outbox& out) {
  begin(now, out);
  Agent* agent = agents_.find(id);
  if (agent == nullptr) {
    enter(id, std::get<Enter>(std::move(message)));
  } else {
    agent->last_heard = now_;
    std::visit([&](auto& said) { hear(*agent, std::move(said)); }, message);
  }
  go_on();
  // A newcomer that did not get into a round at once is told what it waits for. The agent may have
  // been removed meanwhile.
  agent = agents_.find(id);
  if (agent != nullptr && agent->state == State::waiting && !agent->told_at) {
    tell_what_it_waits_for(*agent);
  }
}

void Membership::lose(AgentId id, const std::string& why, Time now, Outbox& out) {
  begin(now, out);
  if (Agent* agent = agents_.find(id)) {
    remove(*agent, why);
  }
  go_on();
}

void Membership::pass(Time now, Outbox& out) {
  begin(now, out);
  while (Agent* agent = agents_.due(now_)) {
    look_at(*agent);
    go_on();  // the round may have waited for a machine that is now lost
  }
  if (phase_ == Phase::ending && now_ >= settle_by_) {
    settle_without_the_slow();
  }
  go_on();
}

Time Membership::next_deadline() const {
  Time next = agents_.next_due();
  if (phase_ == Phase::ending) {
    next = std::min(next, settle_by_);
  }
  if (phase_ == Phase::gathering && last_call_) {
    next = std::min(next, *last_call_);
  }
  if (phase_ == Phase::refused) {
    next = std::min(next, refuses_until_);
  }
  if (phase_ == Phase::over && agents_.empty() && refuses_late_) {
    next = std::min(next, over_since_ + times_.close);
  }
  return next == Time::max() ? next : next + stalled_;  // all times above are less stalled_
}

bool Membership::gives_way(Time now) const {
  now -= stalled_;
  return phase_ == Phase::refused
             ? now >= refuses_until_
             : phase_ == Phase::over && (!refuses_late_ || now >= over_since_ + times_.close);
}

bool Membership::gives_way_to(const Enter& enter, Time now) const {
  const Machine& newcomer = enter.machine;
  return gives_way(now) || (phase_ == Phase::refused && was_refused_as_another(newcomer));
}

/// True if a machine of that host and rank was refused whose launcher was another process.
bool Membership::was_refused_as_another(const Machine& newcomer) const {
  const auto is_its_place = [&](const Refused& refused) {
    return std::get<0>(refused) == newcomer.host && std::get<1>(refused) == newcomer.machine_rank;
  };
  // refused_ is ordered by host, rank and pid. The entry with the newcomer's own pid does not
  // count.
  auto refused = refused_.lower_bound({newcomer.host, newcomer.machine_rank, 0});
  if (refused != refused_.end() && is_its_place(*refused) &&
      std::get<2>(*refused) == newcomer.pid) {
    ++refused;
  }
  return refused != refused_.end() && is_its_place(*refused);
}

bool Membership::is_forgotten(Time now) const {
  return agents_.empty() && ((phase_ != Phase::over && phase_ != Phase::refused) || gives_way(now));
}

/// Start of every event: sets now_ and out_, and detects a suspension of this process.
///
/// The server calls `pass` at next_deadline(). If that time is long past, the process did not run
/// in between (SIGSTOP, a suspended virtual machine, overload) and could not receive heartbeats.
/// That time is added to stalled_ and subtracted from all later times.
void Membership::begin(Time now, Outbox& out) {
  out_ = &out;
  const Time due = next_deadline();
  if (due != Time::max() && now > due + times_.heartbeat / kBeatsPerHeartbeat) {
    stalled_ += now - due;
    alive_since_ = now - stalled_;
  }
  now_ = std::max(now_, now - stalled_);
}

/// End of every event: makes the phase transitions that the event has made possible.
void Membership::go_on() {
  const bool is_in_round = phase_ == Phase::running || phase_ == Phase::ending;
  if (is_in_round && attempt_.num_awaited() == 0) {
    settle();
  }
  if (phase_ == Phase::gathering) {
    gather();
  }
  if (phase_ == Phase::refused && now_ >= refuses_until_) {
    phase_ = Phase::over;
  }
}

void Membership::hear(Agent& /*agent*/, Enter&& /*message*/) {
  throw Error(Errc::protocol, "an agent sent a second Enter message");
}

void Membership::hear(Agent& agent, Rejoin&& message) {
  if (agent.state == State::done) {
    return;  // crossed the Settled message that cancels the restart
  }
  if (agent.state != State::settled) {
    throw Error(Errc::protocol, "an agent sent Rejoin before its round was over");
  }
  agent.machine.store_port = message.store_port;
  agents_.move_to(agent, State::waiting);
  agent.waits_since = now_;
  agent.told_at.reset();  // `receive` tells it at once what it waits for
}

/// Echoes the heartbeat, so that the agent knows that the server is alive. `receive` has already
/// noted that the agent is.
void Membership::hear(Agent& agent, Beat&& message) {
  send(agent.id, std::move(message));
}

/// Force stop: passes it to the other machines of the round, once per round.
void Membership::hear(Agent& agent, ForceStop&& /*message*/) {
  const bool is_in_round = phase_ == Phase::running || phase_ == Phase::ending;
  if (!is_in_round || !agent.rank || std::exchange(is_force_stopped_, true)) {
    return;
  }
  auto others = agents_.in({State::running, State::leaving, State::reported});
  std::erase(others, &agent);
  send_all(others, Insisted{});
}

void Membership::hear(Agent& agent, Leave&& /*message*/) {
  remove(agent, "its launcher has ended");
}

/// Removes an agent that left, was dropped or is lost. In a round its loss may end the attempt.
/// Between two rounds of a static job no other machine can take its rank, so the job is over.
void Membership::remove(Agent& agent, const std::string& why) {
  const State state = agent.state;
  const std::optional<int> rank = agent.rank;
  give_rank_back(agent);
  if (agent.machine.serves) {
    server_.reset();
  }
  agents_.erase(agent);
  if (!rank || state == State::done) {
    return;
  }
  if (phase_ == Phase::running || phase_ == Phase::ending) {
    lose_from_attempt(*rank, state == State::reported, why);
  } else if (phase_ == Phase::gathering && terms_.ranks_are_given) {
    finish({lost(*rank, why), {}, RoundResult::Next::finished});
  }
}

/// Checks the time limits of one agent: heartbeat, join timeout, next Waiting message.
void Membership::look_at(Agent& agent) {
  if (now_ - std::max(agent.last_heard, alive_since_) >= times_.heartbeat) {
    const std::string limit = seconds(times_.heartbeat);
    send(agent.id,
         Dropped{Dropped::Why::lost, "the server received no heartbeat from it for " + limit});
    return remove(agent, "no heartbeat from it for " + limit);
  }
  if (now_ >= limit_of(agent)) {
    const std::optional<int> given = agent.machine.machine_rank;
    if (is_misled()) {
      return drop(agent, Dropped::Why::config, misled_reason());
    }
    const std::string reason = timeout_reason(agent);
    drop(agent, Dropped::Why::timeout, reason);
    if (terms_.ranks_are_given) {
      missing_.erase(*given);  // it had connected, so messages do not name it as missing
    }
    return;
  }
  if (agent.state == State::waiting && now_ >= next_telling(agent)) {
    return tell_what_it_waits_for(agent);
  }
  look_later(agent);
}

/// Schedules the next look_at. It may come too early, never too late: a message of the agent moves
/// last_heard but not this time, which saves a change of the queue per message.
void Membership::look_later(Agent& agent) {
  Time next = std::max(agent.last_heard, alive_since_) + times_.heartbeat;
  if (agent.state == State::waiting) {
    // A join timeout that does not run now (limit_of) can start at `now_` at the earliest.
    next = std::min({next, next_telling(agent), now_ + agent.join});
  }
  next = std::min(next, limit_of(agent));
  agents_.look_again(agent, next);
}

/// Returns the end of an agent's join timeout; Time::max() while it does not run. It runs for a
/// settled agent until it rejoins, and for a waiting agent only while too few machines are present.
/// Otherwise a wait is normal: for the last call, for a round that is ending, or as a spare
/// machine.
Time Membership::limit_of(const Agent& agent) const {
  if (phase_ == Phase::gathering && agent.state == State::settled) {
    return agent.waits_since + agent.join;
  }
  if (phase_ == Phase::gathering && agent.state == State::waiting && is_short_) {
    return std::max(agent.waits_since, short_since_) +
           (is_misled() ? std::min(agent.join, times_.heartbeat) : agent.join);
  }
  return Time::max();
}

void Membership::send(AgentId id, const ServerMessage& message) {
  auto frame = std::make_shared<std::string>();
  encode(message, *frame);
  const auto* dropped = std::get_if<Dropped>(&message);
  const bool is_lost = dropped != nullptr && dropped->why == Dropped::Why::lost;
  out_->push_back({id, std::move(frame), dropped != nullptr, is_lost});
}

void Membership::send_all(const std::vector<Agent*>& agents, const ServerMessage& message) {
  const auto frame = std::make_shared<std::string>();
  encode(message, *frame);
  for (const Agent* agent : agents) {
    out_->push_back({agent->id, frame});
  }
}

/// Refuses a known agent: Dropped is its last message, and it leaves the job.
void Membership::drop(Agent& agent, Dropped::Why why, const std::string& reason) {
  send(agent.id, Dropped{why, reason});
  remove(agent, reason);
}

/// Refuses an agent that has not been added to agents_.
void Membership::drop_stranger(AgentId id, Dropped::Why why, const std::string& reason) {
  send(id, Dropped{why, reason});
}

void Membership::tell_what_it_waits_for(Agent& agent) {
  agent.told_at = now_;
  send(agent.id, Waiting{what_is_waited_for()});
  look_later(agent);
}

}  // namespace acc::rendezvous::rounds
