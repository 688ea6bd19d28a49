// SPDX-License-Identifier: Apache-2.0
#include "rounds/membership.hpp"

#include "acc/base/error.hpp"
#include "rounds/codec.hpp"
#include "rounds/sentences.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace acc::rendezvous::rounds {
namespace {

using Cause = AttemptEnd::Cause;
using phase::Gathering;
using phase::InRound;
using phase::Over;
using phase::Refused;

// Interval of the Status messages of an agent: longer for very large jobs, so that those of a job
// take a limited part of the server's time.
constexpr JobTimes::Milliseconds kStatusInterval{1'000};
constexpr JobTimes::Milliseconds kStatusPerMachine{1};
// Interval of the Waiting messages to an agent.
constexpr std::chrono::seconds kProgressInterval{10};
// Limit of JobTimes::close, so that finished jobs do not occupy memory for long.
constexpr JobTimes::Milliseconds kLongestClose = std::chrono::hours(1);

// Estimated memory of a job in all containers of the server, without its strings.
constexpr std::size_t kJobBytes = 2048;
// Estimated memory of one node of a std::map or std::set.
constexpr std::size_t kNodeBytes = 64;

std::size_t bytes_of(const Agreed& agreed) {
  std::size_t bytes = 0;
  for (const auto& [name, value] : agreed) {
    bytes += sizeof(Agreed::value_type) + name.size() + value.size();
  }
  return bytes;
}

Time next_telling(const Agent& agent) {
  return agent.told_at.value_or(agent.waits_since) + kProgressInterval;
}

/// End of the job because a machine is lost.
AttemptEnd lost(int rank, const std::string& host, const std::string& why) {
  return {rank,
          host,
          1,
          false,
          Cause::other,
          fmt::format("the connection to {} is lost: {}", name_of(rank, host), why)};
}

}  // namespace

void Refused::add(const Machine& machine) {
  ++num_told;
  ranks_told.insert(machine.machine_rank.value_or(-1));
  if (told.emplace(machine.host, machine.machine_rank, machine.pid).second) {
    told_bytes += Agents::bytes_of(machine);
  }
}

bool Refused::has_told_another_process(const Machine& newcomer) const {
  const auto is_its_place = [&](const Process& process) {
    return std::get<0>(process) == newcomer.host && std::get<1>(process) == newcomer.machine_rank;
  };
  // The set is ordered by host, rank and pid. The entry with the newcomer's own pid does not count.
  auto found = told.lower_bound({newcomer.host, newcomer.machine_rank, 0});
  if (found != told.end() && is_its_place(*found) && std::get<2>(*found) == newcomer.pid) {
    ++found;
  }
  return found != told.end() && is_its_place(*found);
}

Membership::Membership(const Enter& founder, bool recovers)
    : run_id_(founder.run_id),
      terms_(founder.terms),
      times_(founder.times),
      founder_(founder.machine),
      founding_bytes_(bytes_to_found(founder)),
      recovers_(recovers) {
  times_.close = std::min(times_.close, kLongestClose);
  if (terms_.ranks_are_given) {
    missing_ = RankSet(terms_.num_machines);
  }
  describe_state();
}

// The job as bytes, for the log of the server.

template <typename Coder, typename Self>
void Membership::code(Coder& coder, Self& self) {
  coder(self.run_id_, self.terms_, self.times_, self.founder_, self.founding_bytes_, self.agents_,
        self.next_round_, self.restart_count_, self.claims_, self.missing_, self.phase_,
        self.result_, self.now_, self.stalled_);
}

Membership::Membership(std::string_view saved, bool recovers)
    : founding_bytes_(0), recovers_(recovers) {
  Reader reader(saved);
  code(reader, *this);
  reader.expect_end();
  for (const Agent* agent : agents_.all()) {
    if (agent->machine.serves) {
      server_ = agent->machine;
    }
  }
  describe_state();
}

std::string Membership::save() const {
  std::string bytes;
  Writer writer(bytes);
  code(writer, *this);
  return bytes;
}

/// Adds the news that lead to the present state, for a job that has just been made or restored.
void Membership::describe_state() {
  news_.emplace_back(news::Created{run_id_, needed(), terms_.num_machines, terms_.max_restarts});
  std::vector<std::pair<int, AgentId>> members;
  for (const Agent* agent : agents_.all()) {
    news_.emplace_back(news::Joined{agent->id, agent->machine});
    // The rank of any other agent is that of an earlier round.
    const bool is_in_round = agent->state == State::running || agent->state == State::leaving ||
                             agent->state == State::reported;
    if (agent->rank && is_in_round) {
      members.emplace_back(*agent->rank, agent->id);
    }
  }
  if (const auto* round = std::get_if<InRound>(&phase_)) {
    std::ranges::sort(members);
    news::Formed formed{round->round, std::vector<AgentId>(round->round.local_world_sizes.size())};
    for (const auto& [rank, id] : members) {
      formed.agents.at(static_cast<std::size_t>(rank)) = id;
    }
    news_.emplace_back(std::move(formed));
    if (round->ending) {
      news_.emplace_back(news::Ended{round->ending->end});
    }
  } else if (has_ended()) {
    news_.emplace_back(news::Over{result_ ? result_->end : std::nullopt});
  }
}

std::size_t Membership::bytes_to_found(const Enter& enter) {
  // The run id is stored three times (Job, Jobs::by_run_id_, Membership), and founder_ is a copy of
  // the agent's machine.
  return kJobBytes + 3 * enter.run_id.size() + bytes_of(enter.terms.agreed) +
         enter.machine.host.size() + enter.machine.address.size();
}

std::size_t Membership::bytes() const {
  std::size_t bytes =
      founding_bytes_ + agents_.bytes() + kNodeBytes * (claims_.size() + missing_.num_runs());
  if (const auto* round = std::get_if<InRound>(&phase_)) {
    bytes += round->attempt.bytes() + (round->ending ? round->ending->end.reason.size() : 0) +
             round->round.local_world_sizes.size() * sizeof(int);
  } else if (const auto* refused = std::get_if<Refused>(&phase_)) {
    bytes += refused->told_bytes + refused->reason.size() + kNodeBytes * refused->ranks_told.size();
  }
  for (std::size_t i = 0; result_ && i < result_->machines.size(); ++i) {
    bytes += sizeof(ReportedMachine) + result_->machines[i].host.size() +
             result_->machines[i].report.size();
  }
  return bytes;
}

// Events.

void Membership::receive(AgentId id, AgentMessage message, const Membership* other_job, Time now,
                         Outbox& out) {
  begin(other_job, now, out);
  Agent* agent = agents_.find(id);
  if (agent != nullptr && std::holds_alternative<Beat>(message)) {
    // No event: it must not make changes that time has made possible.
    agent->last_heard = now_;
    return send(id, Beat{});
  }
  handle(id, std::move(message));
  // A newcomer that did not get into a round at once is told what it waits for. The agent may have
  // been removed meanwhile.
  agent = agents_.find(id);
  if (agent != nullptr && agent->state == State::waiting && !agent->told_at) {
    send_waiting(*agent);
  }
}

void Membership::lose(AgentId id, const std::string& why, const Membership* other_job, Time now,
                      Outbox& out) {
  begin(other_job, now, out);
  handle(id, Lost{why});
}

std::vector<Membership::Due> Membership::pass(const Membership* other_job, Time now, Outbox& out) {
  begin(other_job, now, out);
  std::vector<Due> happened;
  while (Agent* agent = agents_.due(now_)) {
    if (const auto what = check_limits(*agent)) {
      happened.emplace_back(agent->id, *what);
      handle(agent->id, *what);
    }
  }
  if (now_ >= own_deadline()) {
    happened.emplace_back(0, LimitPassed{});
    handle(0, LimitPassed{});
  }
  return happened;
}

/// Makes the changes of an event. What it does depends only on the event, its time and the state
/// that `save` encodes, so that `repeat` does the same.
void Membership::handle(AgentId id, Occurrence what) {
  Agent* agent = agents_.find(id);
  if (auto* message = std::get_if<AgentMessage>(&what)) {
    if (agent == nullptr) {
      enter(id, std::get<Enter>(std::move(*message)));
    } else {
      agent->last_heard = now_;
      std::visit([&](auto& fields) { on_message(*agent, std::move(fields)); }, *message);
    }
  } else if (const auto* lost = std::get_if<Lost>(&what)) {
    if (agent != nullptr && !agent->is_away) {
      remove(*agent, lost->why, news::Gone::Why::lost);
    }
  } else if (agent != nullptr && std::holds_alternative<Silent>(what)) {
    const std::string limit = seconds(times_.heartbeat);
    send(id, Dropped{Dropped::Why::lost, "the server received no heartbeat from it for " + limit});
    remove(*agent, "no heartbeat from it for " + limit, news::Gone::Why::lost);
  } else if (agent != nullptr && std::holds_alternative<TimedOut>(what)) {
    time_out(*agent);
  } else if (std::holds_alternative<Recovered>(what)) {
    for (Agent* each : agents_.all()) {
      agents_.set_away(*each, true);
    }
  } else if (const auto* round = std::get_if<InRound>(&phase_);
             round != nullptr && round->ending && now_ >= round->ending->settle_by) {
    settle_at_limit(round->attempt, round->ending->end);
  }
  go_on();
}

void Membership::repeat(JobEvent event, Outbox& out) {
  out_ = &out;
  other_job_ = nullptr;
  now_ = event.at;
  stalled_ = event.stalled;
  handle(event.agent, std::move(event.what));
}

void Membership::recover(Time now) {
  Outbox unused;  // nobody is connected
  repeat({.at = std::max(now_, now - stalled_), .stalled = stalled_, .what = Recovered{}}, unused);
  alive_since_ = now_;
  for (Agent* agent : agents_.all()) {
    agent->told_at.reset();
    schedule_check(*agent);
  }
}

std::optional<AgentId> Membership::id_of(const std::string& key) {
  const Agent* agent = agents_.find(key);
  return agent == nullptr ? std::nullopt : std::optional(agent->id);
}

Time Membership::next_deadline() const {
  const Time next = std::min(agents_.next_due(), own_deadline());
  return next == Time::max() ? next : next + stalled_;  // own times are less stalled_
}

/// Returns the next time limit of the job itself, less stalled_.
Time Membership::own_deadline() const {
  if (const auto* gathering = std::get_if<Gathering>(&phase_)) {
    const auto* last_call = std::get_if<Gathering::LastCall>(&gathering->wait);
    return last_call != nullptr && agents_.num_away() == 0 ? last_call->until : Time::max();
  }
  if (const auto* round = std::get_if<InRound>(&phase_)) {
    return round->ending ? round->ending->settle_by : Time::max();
  }
  if (const auto* refused = std::get_if<Refused>(&phase_)) {
    return end_of(*refused);
  }
  return agents_.empty() ? std::get<Over>(phase_).refuses_until.value_or(Time::max()) : Time::max();
}

bool Membership::gives_way(Time now) const {
  now -= stalled_;
  if (const auto* refused = std::get_if<Refused>(&phase_)) {
    return now >= end_of(*refused);
  }
  const auto* over = std::get_if<Over>(&phase_);
  return over != nullptr && (!over->refuses_until || now >= *over->refuses_until);
}

bool Membership::gives_way_to(const Enter& enter, Time now) const {
  const auto* refused = std::get_if<Refused>(&phase_);
  return gives_way(now) || (refused != nullptr && refused->has_told_another_process(enter.machine));
}

bool Membership::is_forgotten(Time now) const {
  return agents_.empty() && (!has_ended() || gives_way(now));
}

/// Start of every event: sets the members of the event, and detects a suspension of this process.
///
/// The server calls `pass` at next_deadline(). If that time is long past, the process did not run
/// in between (SIGSTOP, a suspended virtual machine, overload) and could not receive heartbeats.
/// That time is added to stalled_ and subtracted from all later times.
void Membership::begin(const Membership* other_job, Time now, Outbox& out) {
  out_ = &out;
  other_job_ = other_job;
  const Time due = next_deadline();
  if (due != Time::max() && now > due + times_.heartbeat / kBeatsPerHeartbeat) {
    stalled_ += now - due;
    alive_since_ = now - stalled_;
  }
  now_ = std::max(now_, now - stalled_);
}

/// End of every event: makes the phase transitions that the event has made possible.
void Membership::go_on() {
  const auto* round = std::get_if<InRound>(&phase_);
  if (round != nullptr && round->attempt.num_awaited() == 0) {
    settle(*round);
  }
  if (auto* gathering = std::get_if<Gathering>(&phase_)) {
    gather(*gathering);
  }
  const auto* refused = std::get_if<Refused>(&phase_);
  if (refused != nullptr && now_ >= end_of(*refused)) {
    phase_ = Over{now_};
  }
  if (agents_.count(State::settled) == 0 && agents_.count(State::done) == 0) {
    result_.reset();
  }
}

// Admission.
//
// A machine may join if its terms equal those of the first machine (the founder) and, in a static
// job, if its rank is free. Before the first round any disagreement refuses the whole job, because
// the server cannot know which machine was started wrongly; afterwards only the newcomer is
// refused.

void Membership::enter(AgentId id, Enter enter) {
  if (Agent* known = agents_.find(enter.agent)) {
    if (!has_given_up(*known, enter)) {
      return resume(*known, id, enter);
    }
    remove(*known, "its launcher has given up the round", news::Gone::Why::left);
  }
  if (enter.round) {
    return send(id, Dropped{Dropped::Why::lost,
                            fmt::format("the server does not know it in round {}", *enter.round)});
  }
  if (!admit(id, enter)) {
    if (!enter.only_asks) {
      news_.emplace_back(news::Refused{enter.machine, drop_reason_});
    }
    return;
  }
  if (enter.only_asks) {
    return answer(id);
  }
  // After a restart of the server, the agents' counts continue those of the lost server.
  next_round_ = std::max(next_round_, enter.rounds_before);
  restart_count_ = std::max(restart_count_, enter.restarts_before);
  Agent& agent = agents_.add(id, recovers_ ? std::move(enter.agent) : "", std::move(enter.machine));
  news_.emplace_back(news::Joined{id, agent.machine});
  if (agent.machine.serves) {
    server_ = agent.machine;
  }
  agent.join = enter.times.join;
  agent.last_heard = agent.waits_since = now_;
  send(id, welcome());
  make_room_for(agent);
}

/// True if an agent that enters again cannot continue its round: it has ended the round by itself,
/// or this server has lost events of the job.
bool Membership::has_given_up(const Agent& agent, const Enter& enter) const {
  const int last_round = next_round_ - 1;
  switch (agent.state) {
    case State::waiting: return enter.round.has_value();
    case State::running:
    case State::leaving:
    case State::reported:
      return enter.round ? *enter.round != last_round : enter.rounds_before > last_round;
    case State::settled: return enter.round && *enter.round != last_round;
    case State::done: break;
  }
  return false;
}

/// Continues with an agent on a new connection: sends again what it may have missed.
void Membership::resume(Agent& agent, AgentId id, const Enter& enter) {
  news_.emplace_back(news::Reconnected{agent.id, id});
  if (const auto claim = claims_.find(agent.machine.machine_rank.value_or(-1));
      claim != claims_.end() && claim->second == agent.id) {
    claim->second = id;
  }
  agents_.reconnect(agent, id);
  agent.last_heard = now_;
  schedule_check(agent);
  send(id, welcome());
  if (agent.state == State::waiting) {
    agent.machine = enter.machine;  // its store may be new
    agent.told_at.reset();
  } else if (agent.state == State::settled && !enter.round) {
    on_message(agent, Rejoin{enter.machine.store_port});
  } else if (agent.state == State::settled || agent.state == State::done) {
    send(id, Settled{agent.own_end ? RoundResult{*agent.own_end, {}, RoundResult::Next::finished}
                                   : result_.value_or(RoundResult{})});
  } else {
    const auto& round = std::get<InRound>(phase_);
    if (!enter.round) {
      Formed formed{round.round};
      formed.round.machine_rank = *agent.rank;
      formed.round.first_role_rank = agent.first_role_rank;
      formed.round.role_world_size = agent.role_world_size;
      send(id, formed);
    }
    if (round.ending || agent.own_end) {
      send(id, Ends{agent.own_end ? *agent.own_end : round.ending->end});
    }
    if (round.is_force_stopped) {
      send(id, KillWorkers{});
    }
  }
}

/// Replies to an agent that only asks (Enter::only_asks) and has no conflict within this job.
void Membership::answer(AgentId asking) {
  if (other_job_ != nullptr && other_job_->server_) {
    send(asking, Dropped{Dropped::Why::config, wrong_server_reason()});
  } else {
    send(asking, Dropped{Dropped::Why::lost, "it only asks"});
  }
}

bool Membership::admit(AgentId id, const Enter& enter) {
  if (auto* refused = std::get_if<Refused>(&phase_)) {
    refuse(*refused, id, enter.machine);
    return false;
  }
  if (const auto* over = std::get_if<Over>(&phase_)) {
    const auto ago = std::chrono::floor<std::chrono::seconds>(now_ - over->since).count();
    send(id, Dropped{Dropped::Why::over,
                     fmt::format("the job '{}' has ended {} s ago; start a new job with another "
                                 "--rdzv_id",
                                 run_id_, ago)});
    return false;
  }
  const std::string reason = disagreement(enter.machine, enter.terms, founder_, terms_);
  if (!reason.empty() && !has_formed()) {
    refuse_all(id, enter, reason);
    return false;
  }
  if (!reason.empty()) {
    send(id, Dropped{Dropped::Why::config, reason});
    return false;
  }
  return !terms_.ranks_are_given || claim_rank(id, enter);
}

/// Static jobs: gives the machine its rank; true on success. A second machine with the same rank
/// refuses the whole job, unless it is the same process on a new connection, which replaces the old
/// one.
bool Membership::claim_rank(AgentId id, const Enter& enter) {
  const Machine& machine = enter.machine;
  const int rank = machine.machine_rank.value_or(-1);
  if (rank < 0 || rank >= terms_.num_machines) {
    send(id, Dropped{Dropped::Why::config,
                     fmt::format("--machine_rank {}, expected 0 to {} with --num_machines {}", rank,
                                 terms_.num_machines - 1, terms_.num_machines)});
    return false;
  }
  if (const auto claim = claims_.find(rank); claim != claims_.end()) {
    Agent& owner = *agents_.find(claim->second);
    const Machine& owned = owner.machine;
    const bool is_same = owned.host == machine.host && owned.pid == machine.pid;
    if (is_same && enter.only_asks) {
      return true;
    }
    if (has_formed()) {
      send(id, Dropped{Dropped::Why::config,
                       fmt::format("the job has already started with {}", describe(owned))});
      return false;
    }
    if (!is_same) {
      refuse_all(id, enter,
                 fmt::format("--machine_rank {} is claimed twice: on {} (pid {}) and on {} "
                             "(pid {}): give every machine its own",
                             rank, owned.host, owned.pid, machine.host, machine.pid));
      return false;
    }
    drop(owner, Dropped::Why::lost, "this agent has reconnected");
  }
  if (enter.only_asks) {
    return true;
  }
  claims_[rank] = id;
  missing_.erase(rank);
  return true;
}

void Membership::give_rank_back(const Agent& agent) {
  const int rank = agent.machine.machine_rank.value_or(-1);
  const auto claim = claims_.find(rank);
  if (claim != claims_.end() && claim->second == agent.id) {
    claims_.erase(claim);
    missing_.insert(rank);
  }
}

/// Refuses the newcomer and all waiting machines, and enters phase Refused: machines that connect
/// later are sent the reason, too, instead of waiting for a job that cannot start.
void Membership::refuse_all(AgentId newcomer, const Enter& enter, const std::string& reason) {
  auto& refused = phase_.emplace<Refused>(
      Refused{.reason = reason,
              .since = now_,
              .fewest_wanted = std::min(needed(), enter.terms.num_machines)});
  for (Agent* agent : agents_.in({State::waiting})) {
    refused.add(agent->machine);
    drop(*agent, Dropped::Why::config, reason);
  }
  refuse(refused, newcomer, enter.machine);
  news_.emplace_back(
      news::Over{AttemptEnd{.exit_status = 2, .cause = Cause::other, .reason = reason}});
}

/// Refuses one more machine. The job is over once as many machines were refused as it needs (in a
/// static job: as many different ranks), at the latest at end_of.
void Membership::refuse(Refused& refused, AgentId newcomer, const Machine& machine) {
  send(newcomer, Dropped{Dropped::Why::config, refused.reason});
  refused.add(machine);
  const std::size_t places = terms_.ranks_are_given ? refused.ranks_told.size() : refused.num_told;
  if (places >= static_cast<std::size_t>(needed())) {
    phase_ = Over{now_};
  }
}

/// Returns the latest end of phase Refused. If as many machines were told as one of them expects,
/// one may still be missing, because two machines have one rank or they expect different numbers:
/// the phase then lasts one heartbeat timeout.
Time Membership::end_of(const Refused& refused) const {
  const bool all_came = refused.num_told >= static_cast<std::size_t>(refused.fewest_wanted);
  return refused.since + (all_came ? std::min(times_.close, times_.heartbeat) : times_.close);
}

/// Ends the attempt for a round with `newcomer` if the running round has room. Not if a machine has
/// already reported success: the job is then about to finish, and the newcomer waits as a spare in
/// case a machine is lost.
void Membership::make_room_for(const Agent& newcomer) {
  auto* round = std::get_if<InRound>(&phase_);
  const int running = num_in_round();
  if (round != nullptr && round->is_running() && running < terms_.num_machines &&
      !round->attempt.has_report()) {
    const int next = std::min(running + agents_.count(State::waiting), terms_.num_machines);
    end_attempt(*round, {.host = newcomer.machine.host,
                         .exit_status = 0,
                         .restarts = true,
                         .cause = Cause::join,
                         .reason = fmt::format(
                             "{} has joined: the next round has {} machines",
                             name_of(newcomer.machine.machine_rank, newcomer.machine.host), next)});
  }
}

// Messages of a known agent.

void Membership::on_message(Agent& /*agent*/, Enter&& /*message*/) {
  throw Error(Errc::protocol, "an agent sent a second Enter message");
}

void Membership::on_message(Agent& agent, Rejoin&& message) {
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

/// Force stop: passes it to the other machines of the round, once per round.
void Membership::on_message(Agent& agent, ForceStop&& /*message*/) {
  auto* round = std::get_if<InRound>(&phase_);
  if (round == nullptr || !agent.rank || std::exchange(round->is_force_stopped, true)) {
    return;
  }
  auto others = agents_.in({State::running, State::leaving, State::reported});
  std::erase(others, &agent);
  send_all(others, KillWorkers{});
}

void Membership::on_message(Agent& agent, Leave&& /*message*/) {
  remove(agent, "its launcher has ended", news::Gone::Why::left);
}

void Membership::on_message(Agent& agent, Away&& /*message*/) {
  agents_.set_away(agent, true);
}

/// A machine ends the attempt. The first end of a round wins. A later one has an effect only if a
/// restart is planned and the later one forbids it: it cancels the restart or, if its machine was
/// stopped and can be spared, removes that machine from the job.
void Membership::on_message(Agent& agent, End&& message) {
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
  auto* round = std::get_if<InRound>(&phase_);
  const bool is_running = round != nullptr && round->is_running();
  const bool is_restarting =
      round != nullptr ? round->ending && round->ending->end.restarts : !has_ended();
  if (!is_running && (may_repeat || !is_restarting)) {
    return;  // the attempt has ended before
  }
  if (end.cause == Cause::stop && can_spare(agent)) {
    let_leave(agent, std::move(end));
  } else if (is_running) {
    end_attempt(*round, std::move(end));
  } else if (round != nullptr) {
    // A failed worker stays the reason of the end; only the restart is cancelled.
    if (round->ending->end.cause == Cause::worker) {
      end = round->ending->end;
      end.restarts = false;
    }
    change_end(*round->ending, std::move(end));
  } else {
    finish({std::move(end), {}, RoundResult::Next::finished});
  }
}

void Membership::on_message(Agent& agent, Report&& message) {
  if (agent.state == State::done) {
    return;  // the round was closed without this report (settle_at_limit)
  }
  if (recovers_ && (agent.state == State::reported || agent.state == State::settled)) {
    return;  // sent again on a new connection
  }
  if (agent.state != State::running && agent.state != State::leaving) {
    throw Error(Errc::protocol, "an agent sent Report while it has no running workers");
  }
  auto& round = std::get<InRound>(phase_);  // the only phase with such agents
  const int rank = *agent.rank;
  if (message.failed && round.is_running()) {
    end_attempt(round,
                {rank, agent.machine.host, 1, may_restart(), Cause::worker,
                 fmt::format("the workers of {} failed", name_of(rank, agent.machine.host))});
  }
  if (agent.state == State::leaving) {
    RoundResult round_result{*agent.own_end, {{rank, agent.machine.host, message.text}}};
    agents_.move_to(agent, State::done);
    send(agent.id, Settled{std::move(round_result)});
  } else {
    agents_.move_to(agent, State::reported);
  }
  news_.emplace_back(news::Reported{agent.id});
  round.attempt.report(rank, std::move(message));
}

// Rounds.
//
// A round ends in one of these ways:
// - All machines report success: the job is over.
// - A worker fails: all machines stop their workers. The job restarts if restarts are left, else it
//   is over.
// - A machine is lost. An elastic job, or one for which another machine waits, restarts without
//   using up a restart; otherwise one is used up. A static job is over.
// - A machine joins an elastic job that has room: another round, which does not use up a restart.
// - A user or the system stops a machine: an elastic job with enough other machines continues
//   without it, any other job is over.
// Machines get JobTimes::settle to stop their workers and report.

/// Number of machines without which no round is formed.
int Membership::needed() const {
  return terms_.ranks_are_given ? terms_.num_machines : terms_.min_machines;
}

int Membership::num_in_round() const {
  return agents_.count(State::running) + agents_.count(State::reported);
}

/// Number of machines that can be in the next round.
int Membership::num_present() const {
  return num_in_round() + agents_.count(State::waiting) + agents_.count(State::settled);
}

/// True if the job can continue without this machine. The server's own machine is never spared: the
/// rendezvous ends with it.
bool Membership::can_spare(const Agent& agent) const {
  return is_elastic() && !agent.machine.serves && num_present() - 1 >= needed();
}

/// Forms a round when enough machines wait.
void Membership::gather(Gathering& gathering) {
  using Shortage = Gathering::Shortage;
  using LastCall = Gathering::LastCall;
  const int waiting = agents_.count(State::waiting);
  const bool all_rejoined = agents_.count(State::settled) == 0;
  if (waiting < needed()) {
    if (!std::holds_alternative<Shortage>(gathering.wait)) {
      gathering.wait = Shortage{now_};
    }
    auto& shortage = std::get<Shortage>(gathering.wait);
    shortage.most_waiting = std::max(shortage.most_waiting, waiting);
    // A restart that lost too many machines waits for new ones like the first round.
    gathering.needs_last_call = gathering.needs_last_call || all_rejoined;
    return;
  }
  if (std::holds_alternative<Shortage>(gathering.wait)) {
    gathering.wait = {};
  }
  if (!all_rejoined || agents_.num_away() > 0) {
    return;  // such machines keep their places until they rejoin or connect again, or time out
  }
  if (gathering.needs_last_call && waiting < terms_.num_machines) {
    if (!std::holds_alternative<LastCall>(gathering.wait)) {
      gathering.wait = LastCall{now_ + times_.last_call};
    }
    if (now_ < std::get<LastCall>(gathering.wait).until) {
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
  // Machine 0 serves the workers' store: its address, port and secret are those of the round.
  const Machine& first = members.front()->machine;
  Formed formed{
      {next_round_++, restart_count_, 0, {}, first.address, first.store_port, first.secret}};
  std::map<std::string, int> role_sizes;
  for (Agent* agent : members) {
    const int size = agent->machine.local_world_size;
    formed.round.local_world_sizes.push_back(size);
    int& role_size = role_sizes[agent->machine.role];
    agent->first_role_rank = role_size;
    role_size += size;
    formed.round.num_kept += agent->rank ? 1 : 0;
  }
  phase_ = InRound{Attempt(members), formed.round};
  news::Formed news{formed.round, {}};
  for (const Agent* agent : members) {
    news.agents.push_back(agent->id);
  }
  news_.emplace_back(std::move(news));
  for (int rank = 0; Agent * agent : members) {
    agent->rank = formed.round.machine_rank = rank++;
    agent->role_world_size = role_sizes[agent->machine.role];
    formed.round.first_role_rank = agent->first_role_rank;
    formed.round.role_world_size = agent->role_world_size;
    agents_.move_to(*agent, State::running);
    schedule_check(*agent);
    send(agent->id, formed);
  }
  for (Agent* agent : agents_.in({State::waiting})) {
    send_waiting(*agent);
  }
}

/// Ends the running attempt: all its machines must stop their workers and report.
void Membership::end_attempt(InRound& round, AttemptEnd end) {
  const bool uses_restart = end.restarts && end.cause == Cause::worker;
  news_.emplace_back(news::Ended{end});
  round.ending = {std::move(end), uses_restart, now_ + times_.settle};
  send_all(agents_.in({State::running, State::reported}), Ends{round.ending->end});
}

/// Replaces the end while workers are being stopped: a more exact reason is known, or the restart
/// is cancelled.
void Membership::change_end(phase::Ending& ending, AttemptEnd end) {
  ending.end = std::move(end);
  news_.emplace_back(news::Ended{ending.end});
  send_all(agents_.in({State::running, State::reported}), Ends{ending.end});
}

/// Lets one machine leave an elastic job. The others restart without it; it gets its own end.
void Membership::let_leave(Agent& agent, AttemptEnd end) {
  if (agent.state != State::running) {
    return dismiss(agent, std::move(end));
  }
  agents_.move_to(agent, State::leaving);
  agents_.keep_own_end(agent, end);
  send(agent.id, Ends{end});
  if (auto& round = std::get<InRound>(phase_); round.is_running()) {
    end.restarts = true;
    end.cause = Cause::membership;
    end.reason = fmt::format("{} has left: {}", name_of(agent.rank, end.host), end.reason);
    end_attempt(round, std::move(end));
  }
}

/// Ends the job for this agent only.
void Membership::dismiss(Agent& agent, AttemptEnd end) {
  give_rank_back(agent);
  agents_.move_to(agent, State::done);
  schedule_check(agent);
  if (recovers_) {
    agents_.keep_own_end(agent, end);
  }
  send(agent.id, Settled{{std::move(end), {}, RoundResult::Next::finished}});
}

/// Closes the round after all its machines have reported or are lost: sends the round result, and
/// gathers for the next round or ends the job.
void Membership::settle(const InRound& round) {
  if (!round.ending) {
    return finish({});
  }
  const bool restarts = round.ending->end.restarts;
  RoundResult result{round.ending->end, round.attempt.words(),
                     restarts ? RoundResult::Next::next_round : RoundResult::Next::finished};
  if (!restarts) {
    return finish(std::move(result));
  }
  news_.emplace_back(news::Settled{});
  restart_count_ += round.ending->uses_restart ? 1 : 0;
  phase_ = Gathering{.is_first = false, .needs_last_call = false};
  const auto members = agents_.in({State::reported});
  if (recovers_) {
    result_ = result;
  }
  send_all(members, Settled{std::move(result)});
  for (Agent* agent : members) {
    agents_.move_to(*agent, State::settled);
  }
  for (Agent* agent : agents_.in({State::settled, State::waiting})) {
    agent->waits_since = now_;  // join timeouts start now, for spares, too
    schedule_check(*agent);
  }
}

/// Closes the round after JobTimes::settle although machines have not reported. A restart would run
/// next to old workers that may still hold their GPUs, so the job ends.
void Membership::settle_at_limit(const Attempt& attempt, AttemptEnd end) {
  if (end.restarts) {
    const int slow = attempt.first_awaited();
    const std::string& host = attempt.host(slow);
    end = {
        slow,
        host,
        1,
        false,
        Cause::other,
        fmt::format("the workers of {} did not stop in time for the restart", name_of(slow, host))};
  }
  for (Agent* agent : agents_.in({State::leaving})) {
    dismiss(*agent, *agent->own_end);
  }
  finish({std::move(end), attempt.words(), RoundResult::Next::finished});
}

/// Ends the job: sends the round result to its machines and drops waiting machines that were never
/// in a round. Agents stay in state done until they disconnect.
void Membership::finish(RoundResult round_result) {
  news_.emplace_back(news::Over{round_result.end});
  phase_ = is_elastic() ? Over{now_, now_ + times_.close} : Over{now_};
  // A finished job compares no more terms.
  founding_bytes_ -= bytes_of(terms_.agreed);
  terms_.agreed = {};
  for (Agent* agent : agents_.in({State::waiting})) {
    if (!agent->rank) {
      drop(*agent, Dropped::Why::over, fmt::format("the job '{}' has ended", run_id_));
    }
  }
  const auto members =
      agents_.in({State::waiting, State::settled, State::running, State::reported});
  if (recovers_) {
    result_ = round_result;
  }
  send_all(members, Settled{std::move(round_result)});
  for (Agent* agent : members) {
    agents_.move_to(*agent, State::done);
    schedule_check(*agent);
  }
}

// Loss of agents and time limits.

/// Removes an agent that left, was dropped or is lost. In a round its loss may end the attempt.
/// Between two rounds of a static job no other machine can take its rank, so the job is over.
void Membership::remove(Agent& agent, const std::string& why, news::Gone::Why kind) {
  const State state = agent.state;
  const std::optional<int> rank = agent.rank;
  const std::string host = agent.machine.host;
  if (state != State::done) {
    news_.emplace_back(news::Gone{agent.id, kind, why});
  } else if (!has_ended()) {
    news_.emplace_back(news::Gone{agent.id, news::Gone::Why::left, why});  // the job goes on
  }
  give_rank_back(agent);
  if (agent.machine.serves) {
    server_.reset();
  }
  agents_.erase(agent);
  if (!rank || state == State::done) {
    return;
  }
  if (auto* round = std::get_if<InRound>(&phase_)) {
    lose_from_round(*round, *rank, state == State::reported, why);
  } else if (!has_ended() && terms_.ranks_are_given) {
    finish({lost(*rank, host, why), {}, RoundResult::Next::finished});
  }
}

/// Handles the loss of a machine of the round. A machine that has reported is not needed any more.
void Membership::lose_from_round(InRound& round, int rank, bool had_reported,
                                 const std::string& why) {
  round.attempt.lose(rank);
  if (had_reported) {
    return;
  }
  const std::string& host = round.attempt.host(rank);
  const bool can_go_on = num_present() >= needed();
  const AttemptEnd loss{rank,
                        host,
                        1,
                        true,
                        Cause::membership,
                        fmt::format("{} is lost: {}", name_of(rank, host), why)};
  if (round.ending) {
    phase::Ending& ending = *round.ending;
    if (terms_.ranks_are_given && ending.end.restarts) {
      // No machine can take its rank: the restart is cancelled.
      change_end(ending, lost(rank, host, why));
    } else if (is_elastic() && ending.end.cause == Cause::worker && can_go_on) {
      // Workers of other machines failed because their connections to this machine broke. The loss
      // is the cause, so the restart does not count as one after a failure.
      change_end(ending, loss);
      ending.uses_restart = false;
    }
    return;
  }
  const bool is_replaced = is_elastic() || can_go_on;
  if (terms_.ranks_are_given || (!is_replaced && !may_restart())) {
    return end_attempt(round, lost(rank, host, why));
  }
  end_attempt(round, loss);
  round.ending->uses_restart = !is_replaced;
}

/// Checks the time limits of one agent: heartbeat, join timeout, next Waiting message. Returns the
/// event if one of the first two has passed.
std::optional<Occurrence> Membership::check_limits(Agent& agent) {
  if (now_ - std::max(agent.last_heard, alive_since_) >= times_.heartbeat) {
    return Silent{};
  }
  if (now_ >= limit_of(agent)) {
    return TimedOut{};
  }
  if (agent.state == State::waiting && now_ >= next_telling(agent)) {
    send_waiting(agent);
  } else {
    schedule_check(agent);
  }
  return std::nullopt;
}

/// Schedules the next check_limits. It may come too early, never too late: a message of the agent
/// moves last_heard but not this time, which saves a change of the queue per message.
void Membership::schedule_check(Agent& agent) {
  Time next = std::max(agent.last_heard, alive_since_) + times_.heartbeat;
  if (agent.state == State::waiting) {
    // A join timeout that does not run now (limit_of) can start at `now_` at the earliest.
    next = std::min({next, next_telling(agent), now_ + agent.join});
  }
  next = std::min(next, limit_of(agent));
  agents_.set_due(agent, next);
}

/// Returns the end of an agent's join timeout; Time::max() while it does not run. It runs for a
/// settled agent until it rejoins, and for a waiting agent only while too few machines are present.
/// Otherwise a wait is normal: for the last call, for a round that is ending, or as a spare
/// machine.
Time Membership::limit_of(const Agent& agent) const {
  const auto* gathering = std::get_if<Gathering>(&phase_);
  if (gathering == nullptr) {
    return Time::max();
  }
  if (agent.state == State::settled) {
    return agent.waits_since + agent.join;
  }
  const auto* shortage = std::get_if<Gathering::Shortage>(&gathering->wait);
  if (shortage == nullptr || agent.state != State::waiting) {
    return Time::max();
  }
  return std::max(agent.waits_since, shortage->since) +
         (waits_at_other_job() ? std::min(agent.join, times_.heartbeat) : agent.join);
}

/// Drops an agent whose join timeout has passed.
void Membership::time_out(Agent& agent) {
  if (waits_at_other_job()) {
    return drop(agent, Dropped::Why::config, wrong_server_reason());
  }
  const std::optional<int> given = agent.machine.machine_rank;
  drop(agent, Dropped::Why::timeout, timeout_reason(std::get<Gathering>(phase_), agent));
  if (terms_.ranks_are_given) {
    missing_.erase(*given);  // it had connected, so messages do not name it as missing
  }
}

// Messages to agents.

Welcome Membership::welcome() const {
  return {.beat_interval = times_.heartbeat / kBeatsPerHeartbeat,
          .silence_limit = times_.heartbeat,
          .recovers = recovers_,
          .status_interval = std::max(kStatusInterval, terms_.num_machines * kStatusPerMachine)};
}

void Membership::send(AgentId id, const ServerMessage& message) {
  auto frame = std::make_shared<std::string>();
  encode(message, *frame);
  const auto* dropped = std::get_if<Dropped>(&message);
  const bool is_lost = dropped != nullptr && dropped->why == Dropped::Why::lost;
  if (dropped != nullptr) {
    drop_reason_ = dropped->reason;
  }
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
  const bool is_refusal = why == Dropped::Why::config || why == Dropped::Why::timeout;
  remove(agent, reason, is_refusal ? news::Gone::Why::refused : news::Gone::Why::left);
}

void Membership::send_waiting(Agent& agent) {
  agent.told_at = now_;
  news_.emplace_back(news::Waits{what_is_waited_for()});
  send(agent.id, Waiting{std::get<news::Waits>(news_.back()).text});
  schedule_check(agent);
}

/// Returns the text of a Waiting message.
std::string Membership::what_is_waited_for() const {
  const auto* round = std::get_if<InRound>(&phase_);
  if (round != nullptr && round->is_running() && num_in_round() >= terms_.num_machines) {
    return fmt::format("waiting for a place: all {} machines of the job are running",
                       terms_.num_machines);
  }
  if (round != nullptr) {
    return "waiting for the next round: machines are running";
  }
  if (terms_.ranks_are_given && !has_formed()) {
    return fmt::format("waiting for {}{}; {} of {} machines are here: {}",
                       machine_ranks(missing_.lowest(kMaxNamed + 1)), about_other_job(),
                       claims_.size(), terms_.num_machines, machine_ranks(ranks_here()));
  }
  return fmt::format("waiting for machines: {} of {} are here{}", agents_.count(State::waiting),
                     wanted(terms_), about_other_job());
}

/// Returns the lowest claimed ranks: one more than a message lists, so that list_of adds "...".
std::vector<int> Membership::ranks_here() const {
  std::vector<int> ranks;
  for (const auto& [rank, agent] : claims_) {
    ranks.push_back(rank);
    if (ranks.size() > kMaxNamed) {
      break;
    }
  }
  return ranks;
}

/// Returns a remark about another run id at this server. In a server that a launcher runs, two run
/// ids usually mean that one job was started with different ids or that two jobs use the same port.
std::string Membership::about_other_job() const {
  if (other_job_ == nullptr || has_formed()) {
    return "";
  }
  if (other_job_->server_) {
    return fmt::format(" for the job '{}', though {} serves the job '{}'", run_id_,
                       describe(*other_job_->server_), other_job_->run_id_);
  }
  return other_job_->has_formed() || !server_
             ? ""
             : fmt::format(" for the job '{}', while {} waits for the job '{}'", run_id_,
                           describe(other_job_->founder_), other_job_->run_id_);
}

/// True if the machines of this static job wait at the server of another job: its own machine 0
/// cannot serve, because the port is taken. They are refused after one heartbeat timeout.
bool Membership::waits_at_other_job() const {
  return terms_.ranks_are_given && !has_formed() && missing_.contains(0) && other_job_ != nullptr &&
         other_job_->server_ && !std::holds_alternative<Over>(other_job_->phase_);
}

std::string Membership::wrong_server_reason() const {
  return fmt::format(
      "{} serves the job '{}' there, not the job '{}': choose another --main_process_port for one "
      "of them, or use the same run id if they are one job",
      describe(*other_job_->server_), other_job_->run_id_, run_id_);
}

std::string Membership::timeout_reason(const Gathering& gathering, const Agent& agent) const {
  const std::string limit = seconds(agent.join);
  if (agent.state == State::settled) {
    return "it has not joined the next round within " + limit;
  }
  if (terms_.ranks_are_given && gathering.is_first) {
    const std::vector<int> missing = missing_.lowest(kMaxNamed + 1);
    return fmt::format(
        "timeout: {} did not join within {}{}; {} of {} machines are here: start acclaunch there "
        "with the same flags and --machine_rank {}",
        machine_ranks(missing), limit, about_other_job(), claims_.size(), terms_.num_machines,
        list_of(missing, " or "));
  }
  return fmt::format(
      "timeout: only {} of {} machines joined within {}{}: start acclaunch on the others with the "
      "same flags",
      std::get<Gathering::Shortage>(gathering.wait).most_waiting, wanted(terms_), limit,
      about_other_job());
}

}  // namespace acc::rendezvous::rounds
