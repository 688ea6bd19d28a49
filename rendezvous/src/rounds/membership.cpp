#include "rounds/membership.hpp"

#include "acc/base/error.hpp"
#include "rounds/sentences.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace acc::rendezvous::rounds {
namespace {

constexpr std::chrono::seconds kProgressInterval{10};
constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr JobTimes::Milliseconds kMaxTime = std::chrono::years(10);
constexpr JobTimes::Milliseconds kLongestClose = std::chrono::days(1);
constexpr std::int64_t kMaxNameBytes = 1024;

Time next_telling(const Agent& agent) {
  return agent.told_at.value_or(agent.waits_since) + kProgressInterval;
}

}  // namespace

void check(const Enter& enter) {
  const auto expect = [](std::string_view what, std::int64_t value, std::int64_t min,
                         std::int64_t max) {
    if (value < min || value > max) {
      throw Error(Errc::protocol,
                  fmt::format("an agent says {} {}, expected {} to {}", what, value, min, max));
    }
  };
  const Terms& terms = enter.terms;
  expect("num_machines", terms.num_machines, 1, kMaxMachines);
  expect("min_machines", terms.min_machines, 1, terms.num_machines);
  expect("num_processes", terms.num_processes, 0, kMaxInt);
  expect("max_restarts", terms.max_restarts, 0, kMaxInt);
  expect("rounds_before", enter.rounds_before, 0, kMaxInt / 2);
  expect("restarts_before", enter.restarts_before, 0, kMaxInt / 2);
  expect("local_world_size", enter.machine.local_world_size, 1, kMaxInt);
  expect("join", enter.times.join.count(), 1, kMaxTime.count());
  expect("last_call", enter.times.last_call.count(), 0, kMaxTime.count());
  expect("heartbeat", enter.times.heartbeat.count(), 1, kMaxTime.count());
  expect("settle", enter.times.settle.count(), 1, kMaxTime.count());
  expect("close", enter.times.close.count(), 0, kMaxTime.count());
  for (const std::string* name : {&enter.run_id, &enter.machine.host, &enter.machine.address}) {
    expect("a name of bytes", static_cast<std::int64_t>(name->size()), 0, kMaxNameBytes);
  }
  for (const auto& [name, value] : terms.agreed) {
    expect("a name of bytes", static_cast<std::int64_t>(name.size()), 1, kMaxNameBytes);
    expect("a value of bytes", static_cast<std::int64_t>(value.size()), 0, kMaxAgreedBytes);
  }
}

Membership::Membership(std::string run_id, Terms terms, JobTimes times)
    : run_id_(std::move(run_id)), terms_(std::move(terms)), times_(times) {
  times_.close = std::min(times_.close, kLongestClose);
  if (terms_.ranks_are_given) {
    for (int rank = 0; rank < terms_.num_machines; ++rank) {
      missing_.insert(missing_.end(), rank);
    }
  }
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
    go_on();  // who is gone may have been the last one waited for
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
  if (phase_ == Phase::refused || (phase_ == Phase::over && agents_.empty() && is_elastic())) {
    next = std::min(next, over_since_ + times_.close);
  }
  return next == Time::max() ? next : next + stalled_;
}

bool Membership::gives_way(Time now) const {
  const bool is_late = now - stalled_ >= over_since_ + times_.close;
  return phase_ == Phase::refused ? is_late : phase_ == Phase::over && (!is_elastic() || is_late);
}

bool Membership::gives_way_to(const Enter& enter, Time now) const {
  const Machine& newcomer = enter.machine;
  return gives_way(now) ||
         (phase_ == Phase::refused && std::ranges::any_of(refused_, [&](const Machine& machine) {
            return machine.host == newcomer.host && machine.machine_rank == newcomer.machine_rank &&
                   machine.pid != newcomer.pid;
          }));
}

bool Membership::is_forgotten(Time now) const {
  return agents_.empty() && ((phase_ != Phase::over && phase_ != Phase::refused) || gives_way(now));
}

/// Every event begins here. Between the moment that `pass` was asked for and now, if that is long,
/// this process did not run, and could not hear anybody.
void Membership::begin(Time now, Outbox& out) {
  out_ = &out;
  const Time due = next_deadline();
  if (due != Time::max() && now > due + times_.heartbeat / 5) {
    stalled_ += now - due;
    alive_since_ = now - stalled_;
  }
  now_ = std::max(now_, now - stalled_);
}

/// Every event ends here: with what has become possible by it.
void Membership::go_on() {
  const bool is_in_round = phase_ == Phase::running || phase_ == Phase::ending;
  if (is_in_round && attempt_.num_awaited() == 0) {
    settle();
  }
  if (phase_ == Phase::gathering) {
    gather();
  }
  if (phase_ == Phase::refused && now_ >= over_since_ + times_.close) {
    phase_ = Phase::gathering;
  }
}

void Membership::enter(AgentId id, Enter enter) {
  if (!founder_) {
    founder_ = enter.machine;
  }
  if (!admit(id, enter)) {
    return;
  }
  if (enter.only_asks) {
    return answer(id);
  }
  next_round_ = std::max(next_round_, enter.rounds_before);
  restart_count_ = std::max(restart_count_, enter.restarts_before);
  Agent& agent = agents_.add(id);
  agent.machine = std::move(enter.machine);
  if (agent.machine.serves) {
    server_ = agent.machine;
  }
  agent.join = enter.times.join;
  agent.last_heard = agent.waits_since = now_;
  send(id, Welcome{times_.heartbeat / 5, times_.heartbeat});
  make_room_for(agent);
}

/// Nobody else is in its place, as far as is known.
void Membership::answer(AgentId asking) {
  if (beside_ != nullptr && beside_->server_) {
    drop_stranger(asking, Dropped::Why::config, misled_reason());
  } else {
    drop_stranger(asking, Dropped::Why::lost, "it only asks");
  }
}

bool Membership::admit(AgentId id, const Enter& enter) {
  if (phase_ == Phase::refused) {
    refuse(id, enter.machine);
    return false;
  }
  if (phase_ == Phase::over) {
    drop_stranger(
        id, Dropped::Why::over,
        fmt::format("the job '{}' has ended {} s ago; give a new one a --rdzv_id of its "
                    "own",
                    run_id_, std::chrono::floor<std::chrono::seconds>(now_ - over_since_).count()));
    return false;
  }
  const std::string reason = disagreement(enter.machine, enter.terms, *founder_, terms_);
  if (!reason.empty() && !has_formed_) {
    refuse_all(id, enter.machine, reason);
    return false;
  }
  if (!reason.empty()) {
    drop_stranger(id, Dropped::Why::config, reason);
    return false;
  }
  return !terms_.ranks_are_given || claim_rank(id, enter);
}

bool Membership::claim_rank(AgentId id, const Enter& enter) {
  const Machine& machine = enter.machine;
  const int rank = machine.machine_rank.value_or(-1);
  if (rank < 0 || rank >= terms_.num_machines) {
    drop_stranger(id, Dropped::Why::config,
                  fmt::format("--machine_rank {}, expected 0 to {} with --num_machines {}", rank,
                              terms_.num_machines - 1, terms_.num_machines));
    return false;
  }
  if (const auto claim = claims_.find(rank); claim != claims_.end()) {
    Agent& owner = *agents_.find(claim->second);
    const Machine& owned = owner.machine;
    const bool is_same = owned.host == machine.host && owned.pid == machine.pid;
    if (is_same && enter.only_asks) {
      return true;
    }
    if (has_formed_) {
      drop_stranger(
          id, Dropped::Why::config,
          fmt::format("the job has started with {}, which was here before", describe(owned)));
      return false;
    }
    if (!is_same) {
      refuse_all(id, machine,
                 fmt::format("--machine_rank {} is claimed twice: on {} (pid {}) and on {} "
                             "(pid {}): give every machine its own",
                             rank, owned.host, owned.pid, machine.host, machine.pid));
      return false;
    }
    drop(owner, Dropped::Why::lost, "this agent has connected anew");
  }
  if (enter.only_asks) {
    return true;
  }
  claims_[rank] = id;
  missing_.erase(rank);
  return true;
}

/// Those who have not come yet hear it too, so that nobody waits for a job that cannot be.
void Membership::refuse_all(AgentId newcomer, const Machine& machine, const std::string& reason) {
  refusal_ = reason;
  over_since_ = now_;
  phase_ = Phase::refused;
  for (Agent* agent : agents_.in({State::waiting})) {
    refused_.push_back(agent->machine);
    drop(*agent, Dropped::Why::config, reason);
  }
  refuse(newcomer, machine);
}

void Membership::refuse(AgentId newcomer, const Machine& machine) {
  drop_stranger(newcomer, Dropped::Why::config, refusal_);
  refused_.push_back(machine);
  if (refused_.size() >= static_cast<std::size_t>(needed())) {
    phase_ = Phase::gathering;  // all have heard it: the next one begins a job
  }
}

void Membership::hear(Agent& /*agent*/, Enter&& /*message*/) {
  throw Error(Errc::protocol, "an agent says twice who it is");
}

void Membership::hear(Agent& agent, Rejoin&& message) {
  if (agent.state == State::done) {
    return;  // the restart was cancelled meanwhile
  }
  if (agent.state != State::settled) {
    throw Error(Errc::protocol, "an agent joins again whose round is not over");
  }
  agent.machine.store_port = message.store_port;
  agents_.move_to(agent, State::waiting);
  agent.waits_since = now_;
  agent.told_at.reset();
}

void Membership::hear(Agent& agent, Beat&& message) {
  send(agent.id, std::move(message));
}

void Membership::hear(Agent& agent, Insist&& /*message*/) {
  const bool is_in_round = phase_ == Phase::running || phase_ == Phase::ending;
  if (!is_in_round || !agent.rank || std::exchange(is_insisted_, true)) {
    return;
  }
  auto others = agents_.in({State::running, State::leaving, State::reported});
  std::erase(others, &agent);
  send_all(others, Insisted{});
}

void Membership::hear(Agent& agent, Leave&& /*message*/) {
  remove(agent, "its launcher has ended");
}

void Membership::give_rank_back(const Agent& agent) {
  const int rank = agent.machine.machine_rank.value_or(-1);
  const auto claim = claims_.find(rank);
  if (claim != claims_.end() && claim->second == agent.id) {
    claims_.erase(claim);
    missing_.insert(rank);
  }
}

/// Whoever is gone for good.
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
    finish({lost(*rank, why), {}, Settlement::Next::finished});
  }
}

void Membership::look_at(Agent& agent) {
  if (now_ - std::max(agent.last_heard, alive_since_) >= times_.heartbeat) {
    const std::string limit = seconds(times_.heartbeat);
    send(agent.id, Dropped{Dropped::Why::lost, "the server heard nothing of it for " + limit});
    return remove(agent, "nothing was heard of it for " + limit);
  }
  if (now_ >= limit_of(agent)) {
    const std::optional<int> given = agent.machine.machine_rank;
    if (is_misled()) {
      return drop(agent, Dropped::Why::config, misled_reason());
    }
    const std::string reason = timeout_reason(agent);
    drop(agent, Dropped::Why::timeout, reason);
    if (terms_.ranks_are_given) {
      missing_.erase(*given);  // it did come
    }
    return;
  }
  if (agent.state == State::waiting && now_ >= next_telling(agent)) {
    return tell_what_it_waits_for(agent);
  }
  look_later(agent);
}

void Membership::look_later(Agent& agent) {
  Time next = std::max(agent.last_heard, alive_since_) + times_.heartbeat;
  if (agent.state == State::waiting) {
    // Where its limit does not count now, it will count from a later moment than now.
    next = std::min({next, next_telling(agent), now_ + agent.join});
  }
  next = std::min(next, limit_of(agent));
  agents_.look_again(agent, next);
}

/// Enough machines wait without limit: for the last call, for those that end their workers, or to
/// replace another one.
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

void Membership::drop(Agent& agent, Dropped::Why why, const std::string& reason) {
  send(agent.id, Dropped{why, reason});
  remove(agent, reason);
}

void Membership::drop_stranger(AgentId id, Dropped::Why why, const std::string& reason) {
  send(id, Dropped{why, reason});
}

void Membership::tell_what_it_waits_for(Agent& agent) {
  agent.told_at = now_;
  send(agent.id, Waiting{what_is_waited_for()});
  look_later(agent);
}

std::string Membership::what_is_waited_for() const {
  if (phase_ == Phase::running && num_in_attempt() >= terms_.num_machines) {
    return fmt::format("waiting for a place: all {} machines of the job are running",
                       terms_.num_machines);
  }
  if (phase_ != Phase::gathering) {
    return "waiting for the next round: machines are running";
  }
  if (terms_.ranks_are_given && !has_formed_) {
    return fmt::format("waiting for machines {} of {}{}", list_of(missing_, ","),
                       terms_.num_machines, what_is_beside());
  }
  return fmt::format("waiting for machines: {} of {} are here{}", agents_.count(State::waiting),
                     wanted(terms_), what_is_beside());
}

/// Two run ids at one rendezvous that is no daemon's are mostly one job's, or two jobs have one
/// port.
std::string Membership::what_is_beside() const {
  if (beside_ == nullptr || has_formed_) {
    return "";
  }
  if (beside_->server_) {
    return fmt::format(" for the job '{}', though {} serves the job '{}'", run_id_,
                       describe(*beside_->server_), beside_->run_id_);
  }
  return beside_->has_formed_ || !beside_->founder_ || !server_
             ? ""
             : fmt::format(" for the job '{}', while {} waits for the job '{}'", run_id_,
                           describe(*beside_->founder_), beside_->run_id_);
}

/// Machine 0 would serve here itself, and cannot, for another job's does.
bool Membership::is_misled() const {
  return terms_.ranks_are_given && !has_formed_ && missing_.contains(0) && beside_ != nullptr &&
         beside_->server_ && beside_->phase_ != Phase::over;
}

std::string Membership::misled_reason() const {
  return fmt::format(
      "{} serves the job '{}' there, not the job '{}': choose another --main_process_port for one "
      "of them, or the same run id where they are one",
      describe(*beside_->server_), beside_->run_id_, run_id_);
}

std::string Membership::timeout_reason(const Agent& agent) const {
  const std::string limit = seconds(agent.join);
  if (agent.state == State::settled) {
    return "it has not joined the next round within " + limit;
  }
  if (terms_.ranks_are_given && !has_formed_) {
    return fmt::format(
        "machines {} of {} did not come within {}{}: start acclaunch there with the same flags and "
        "--machine_rank {}",
        list_of(missing_, ","), terms_.num_machines, limit, what_is_beside(),
        list_of(missing_, " or "));
  }
  return fmt::format(
      "{} of {} machines came within {}{}: start acclaunch on the others with the same flags",
      most_waiting_, wanted(terms_), limit, what_is_beside());
}

}  // namespace acc::rendezvous::rounds
