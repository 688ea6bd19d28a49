#include "acc/base/error.hpp"
#include "rounds/membership.hpp"
#include "rounds/sentences.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

// Admission of agents to a job, and the messages to agents that wait or are refused.
//
// A machine may join if its terms equal those of the first machine (the founder) and, in a static
// job, if its rank is free. Before the first round any disagreement refuses the whole job, because
// the server cannot know which machine was started wrongly; afterwards only the newcomer is
// refused.
namespace acc::rendezvous::rounds {
void Membership::enter(AgentId id, Enter enter) {
  if (!founder_) {
    founder_ = enter.machine;
    founding_bytes_ = bytes_to_found(enter);
  }
  if (!admit(id, enter)) {
    return;
  }
  if (enter.only_asks) {
    return answer(id);
  }
  // After a restart of the server, the agents' counts continue those of the lost server.
  next_round_ = std::max(next_round_, enter.rounds_before);
  restart_count_ = std::max(restart_count_, enter.restarts_before);
  Agent& agent = agents_.add(id, std::move(enter.machine));
  if (agent.machine.serves) {
    server_ = agent.machine;
  }
  agent.join = enter.times.join;
  agent.last_heard = agent.waits_since = now_;
  send(id, Welcome{times_.heartbeat / kBeatsPerHeartbeat, times_.heartbeat});
  make_room_for(agent);
}

/// Replies to an agent that only asks (Enter::only_asks) and has no conflict within this job.
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
        fmt::format("the job '{}' has ended {} s ago; start a new job with another --rdzv_id",
                    run_id_, std::chrono::floor<std::chrono::seconds>(now_ - over_since_).count()));
    return false;
  }
  const std::string reason = disagreement(enter.machine, enter.terms, *founder_, terms_);
  if (!reason.empty() && !has_formed_) {
    refuse_all(id, enter, reason);
    return false;
  }
  if (!reason.empty()) {
    drop_stranger(id, Dropped::Why::config, reason);
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
      drop_stranger(id, Dropped::Why::config,
                    fmt::format("the job has already started with {}", describe(owned)));
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

/// Refuses the newcomer and all waiting machines, and enters phase refused: machines that connect
/// later are sent the reason, too, instead of waiting for a job that cannot start.
void Membership::refuse_all(AgentId newcomer, const Enter& enter, const std::string& reason) {
  fewest_wanted_ = std::min(needed(), enter.terms.num_machines);
  refusal_ = reason;
  over_since_ = now_;
  phase_ = Phase::refused;
  for (Agent* agent : agents_.in({State::waiting})) {
    remember_refused(agent->machine);
    drop(*agent, Dropped::Why::config, reason);
  }
  refuse(newcomer, enter.machine);
}

/// Refuses one more machine, and shortens or ends phase refused.
///
/// The phase ends at once when as many machines were refused as the job needs (in a static job:
/// as many different ranks). When only the number matches, because two machines have one rank or
/// machines expect different numbers, one may be missing: the phase lasts one heartbeat timeout.
void Membership::refuse(AgentId newcomer, const Machine& machine) {
  drop_stranger(newcomer, Dropped::Why::config, refusal_);
  remember_refused(machine);
  const auto wanted = static_cast<std::size_t>(needed());
  const bool all_came = num_refused_ >= static_cast<std::size_t>(fewest_wanted_);
  refuses_until_ =
      over_since_ + (all_came ? std::min(times_.close, times_.heartbeat) : times_.close);
  if (num_places_refused() >= wanted) {
    phase_ = Phase::over;
  }
}

void Membership::remember_refused(const Machine& machine) {
  ++num_refused_;
  refused_ranks_.insert(machine.machine_rank.value_or(-1));
  if (refused_.emplace(machine.host, machine.machine_rank, machine.pid).second) {
    refused_bytes_ += Agents::bytes_of(machine);
  }
}

std::size_t Membership::num_places_refused() const {
  return terms_.ranks_are_given ? refused_ranks_.size() : num_refused_;
}

void Membership::give_rank_back(const Agent& agent) {
  const int rank = agent.machine.machine_rank.value_or(-1);
  const auto claim = claims_.find(rank);
  if (claim != claims_.end() && claim->second == agent.id) {
    claims_.erase(claim);
    missing_.insert(rank);
  }
}

/// Returns the text of a Waiting message.
std::string Membership::what_is_waited_for() const {
  if (phase_ == Phase::running && num_in_attempt() >= terms_.num_machines) {
    return fmt::format("waiting for a place: all {} machines of the job are running",
                       terms_.num_machines);
  }
  if (phase_ != Phase::gathering) {
    return "waiting for the next round: machines are running";
  }
  if (terms_.ranks_are_given && !has_formed_) {
    return fmt::format("waiting for {}{}; {} of {} machines are here: {}",
                       machine_ranks(missing_.lowest(kMaxNamed + 1)), what_is_beside(),
                       claims_.size(), terms_.num_machines, machine_ranks(ranks_here()));
  }
  return fmt::format("waiting for machines: {} of {} are here{}", agents_.count(State::waiting),
                     wanted(terms_), what_is_beside());
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

/// True if the machines of this static job wait at the server of another job: its own machine 0
/// cannot serve, because the port is taken. They are refused after one heartbeat timeout.
bool Membership::is_misled() const {
  return terms_.ranks_are_given && !has_formed_ && missing_.contains(0) && beside_ != nullptr &&
         beside_->server_ && beside_->phase_ != Phase::over;
}

std::string Membership::misled_reason() const {
  return fmt::format(
      "{} serves the job '{}' there, not the job '{}': choose another --main_process_port for one "
      "of them, or use the same run id if they are one job",
      describe(*beside_->server_), beside_->run_id_, run_id_);
}

std::string Membership::timeout_reason(const Agent& agent) const {
  const std::string limit = seconds(agent.join);
  if (agent.state == State::settled) {
    return "it has not joined the next round within " + limit;
  }
  if (terms_.ranks_are_given && !has_formed_) {
    const std::vector<int> missing = missing_.lowest(kMaxNamed + 1);
    return fmt::format(
        "timeout: {} did not join within {}{}; {} of {} machines are here: start acclaunch there "
        "with the same flags and --machine_rank {}",
        machine_ranks(missing), limit, what_is_beside(), claims_.size(), terms_.num_machines,
        list_of(missing, " or "));
  }
  return fmt::format(
      "timeout: only {} of {} machines joined within {}{}: start acclaunch on the others with the "
      "same flags",
      most_waiting_, wanted(terms_), limit, what_is_beside());
}

}  // namespace acc::rendezvous::rounds
