#include "rounds/agents.hpp"

#include <algorithm>

namespace acc::rendezvous::rounds {

Agent& Agents::add(AgentId id) {
  Agent& agent = by_id_[id];
  agent.id = id;
  agent.arrival = arrivals_++;
  ++counter(agent.state);
  by_due_.emplace(agent.due, id);
  return agent;
}

Agent* Agents::find(AgentId id) {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &found->second;
}

void Agents::erase(const Agent& agent) {
  --counter(agent.state);
  by_due_.erase({agent.due, agent.id});
  by_id_.erase(agent.id);
}

void Agents::move_to(Agent& agent, Agent::State state) {
  --counter(agent.state);
  ++counter(state);
  agent.state = state;
}

std::vector<Agent*> Agents::in(std::initializer_list<Agent::State> states) {
  std::vector<Agent*> found;
  for (auto& [id, agent] : by_id_) {
    if (std::ranges::find(states, agent.state) != states.end()) {
      found.push_back(&agent);
    }
  }
  std::ranges::sort(found, {}, &Agent::arrival);
  return found;
}

void Agents::look_again(Agent& agent, Time at) {
  by_due_.erase({agent.due, agent.id});
  agent.due = at;
  by_due_.emplace(at, agent.id);
}

Agent* Agents::due(Time now) {
  return next_due() <= now ? find(by_due_.begin()->second) : nullptr;
}

}  // namespace acc::rendezvous::rounds
