// SPDX-License-Identifier: Apache-2.0
#include "rounds/agents.hpp"

#include "acc/base/error.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace acc::rendezvous::rounds {
namespace {

// Estimated memory of an agent in all containers of the server (connection, job, membership),
// without its strings.
constexpr std::size_t kAgentBytes = 1024;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Removes the leading digits from `text` and returns them without leading zeros.
std::string_view take_number(std::string_view& text) {
  const auto end = std::ranges::find_if_not(text, is_digit);
  std::string_view number(text.begin(), end);
  text.remove_prefix(number.size());
  number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
  return number;
}

/// True if host name `a` sorts before `b`. Digits are compared as numbers: node2 is before node10.
bool natural_less(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (is_digit(a.front()) && is_digit(b.front())) {
      const std::string_view x = take_number(a);
      const std::string_view y = take_number(b);
      if (x != y) {
        // Without leading zeros the longer number is the larger one, of any length.
        return std::pair(x.size(), x) < std::pair(y.size(), y);
      }
    } else if (a.front() != b.front()) {
      return a.front() < b.front();
    } else {
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

/// Sort key of a rank: machines without one come last.
int rank_or_last(const std::optional<int>& rank) {
  return rank.value_or(std::numeric_limits<int>::max());
}

/// Order of ranks: compares one key after the other. The arrival is unique, so no two agents are
/// equal.
bool comes_before(const Agent* a, const Agent* b) {
  const auto ranks = [](const Agent* agent) {
    return std::pair(rank_or_last(agent->machine.machine_rank), rank_or_last(agent->rank));
  };
  if (ranks(a) != ranks(b)) {
    return ranks(a) < ranks(b);
  }
  for (const auto field : {&Machine::host, &Machine::address}) {
    const std::string& mine = a->machine.*field;
    const std::string& other = b->machine.*field;
    if (natural_less(mine, other) || natural_less(other, mine)) {
      return natural_less(mine, other);
    }
  }
  return a->arrival < b->arrival;
}

/// Puts the machines of the last round at their ranks of that round, and the others at the free
/// ones, unless the user has given ranks, or some of them are too high for so few machines.
std::vector<Agent*> keep_ranks(std::vector<Agent*> sorted) {
  std::vector<Agent*> placed(sorted.size());
  for (Agent* agent : sorted) {
    if (agent->machine.machine_rank ||
        (agent->rank && static_cast<std::size_t>(*agent->rank) >= sorted.size())) {
      return sorted;
    }
    if (agent->rank) {
      Agent*& place = placed[static_cast<std::size_t>(*agent->rank)];
      if (place != nullptr) {
        return sorted;
      }
      place = agent;
    }
  }
  auto free = placed.begin();
  for (Agent* agent : sorted) {
    if (!agent->rank) {
      free = std::find(free, placed.end(), nullptr);
      *free = agent;
    }
  }
  return placed;
}

}  // namespace

std::size_t Agents::bytes_of(const Machine& machine) {
  return kAgentBytes + machine.host.size() + machine.address.size() + machine.secret.size() +
         machine.role.size();
}

std::size_t Agents::bytes_of(const Agent& agent) {
  return bytes_of(agent.machine) + 2 * agent.key.size() +
         (agent.own_end ? agent.own_end->reason.size() : 0);
}

Agent& Agents::add(AgentId id, std::string key, Machine machine) {
  Agent& agent = by_id_[id];
  agent.id = id;
  agent.key = std::move(key);
  agent.machine = std::move(machine);
  if (!agent.key.empty()) {
    by_key_[agent.key] = id;
  }
  bytes_ += bytes_of(agent);
  agent.arrival = arrivals_++;
  ++counter(agent.state);
  by_due_.emplace(agent.due, id);
  return agent;
}

Agent* Agents::find(AgentId id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

Agent* Agents::find(const std::string& key) {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : find(found->second);
}

/// Adds an agent that was saved.
void Agents::restore(const Agent& saved) {
  const auto [at, is_new] = by_id_.try_emplace(saved.id, saved);
  if (!is_new) {
    throw Error(Errc::protocol, "a saved job has one agent twice");
  }
  Agent& agent = at->second;
  if (!agent.key.empty()) {
    by_key_[agent.key] = agent.id;
  }
  arrivals_ = std::max(arrivals_, agent.arrival + 1);
  bytes_ += bytes_of(agent);
  ++counter(agent.state);
  by_due_.emplace(agent.due, agent.id);
  num_away_ += agent.is_away ? 1 : 0;
}

void Agents::reconnect(Agent& agent, AgentId id) {
  set_away(agent, false);
  by_due_.erase({agent.due, agent.id});
  by_due_.emplace(agent.due, id);
  by_key_[agent.key] = id;
  auto node = by_id_.extract(agent.id);
  node.key() = id;
  agent.id = id;
  by_id_.insert(std::move(node));
}

void Agents::set_away(Agent& agent, bool is_away) {
  num_away_ += static_cast<int>(is_away) - static_cast<int>(agent.is_away);
  agent.is_away = is_away;
}

std::vector<Agent*> Agents::all() {
  return in({Agent::State::waiting, Agent::State::running, Agent::State::leaving,
             Agent::State::reported, Agent::State::settled, Agent::State::done});
}

void Agents::erase(const Agent& agent) {
  by_key_.erase(agent.key);
  num_away_ -= agent.is_away ? 1 : 0;
  bytes_ -= bytes_of(agent);
  --counter(agent.state);
  by_due_.erase({agent.due, agent.id});
  by_id_.erase(agent.id);
}

void Agents::move_to(Agent& agent, Agent::State state) {
  --counter(agent.state);
  ++counter(state);
  agent.state = state;
}

void Agents::keep_own_end(Agent& agent, AttemptEnd end) {
  bytes_ -= bytes_of(agent);  // the reason is part of the agent's size
  agent.own_end = std::move(end);
  bytes_ += bytes_of(agent);
}

std::vector<Agent*> Agents::in(std::initializer_list<Agent::State> states) {
  std::vector<Agent*> found;
  for (auto& [id, agent] : by_id_) {
    if (std::ranges::find(states, agent.state) != states.end()) {
      found.push_back(&agent);
    }
  }
  // The order of an unordered_map differs between runs; ranks and messages must not.
  std::ranges::sort(found, {}, &Agent::arrival);
  return found;
}

void Agents::set_due(Agent& agent, Time at) {
  by_due_.erase({agent.due, agent.id});
  agent.due = at;
  by_due_.emplace(at, agent.id);
}

Agent* Agents::due(Time now) {
  return next_due() <= now ? find(by_due_.begin()->second) : nullptr;
}

std::vector<Agent*> in_rank_order(std::vector<Agent*> waiting, std::size_t num_machines) {
  // First sort: who gets a place. Second sort: the ranks of those who did.
  std::ranges::sort(waiting, {}, [](const Agent* agent) {
    return std::pair(!agent->rank.has_value(), agent->arrival);
  });
  waiting.resize(std::min(waiting.size(), num_machines));
  std::ranges::sort(waiting, comes_before);
  return keep_ranks(std::move(waiting));
}

}  // namespace acc::rendezvous::rounds
