// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/job.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace acc::rendezvous::rounds {

/// Identifies an agent's connection to the server. Never reused: an agent that connects again gets
/// a new one.
using AgentId = std::uint64_t;

/// Monotonic time, always passed in by the caller: nothing in rounds/ reads a clock.
using Time = std::chrono::steady_clock::time_point;

/// State of one agent in the membership of its job.
///
/// Usual order of states: waiting -> running -> reported -> settled -> waiting (Rejoin) ..., and
/// done at the end of the job.
struct Agent {
  enum class State : std::uint8_t {
    waiting,   ///< waits for a place in a round
    running,   ///< in the round; its workers run
    leaving,   ///< same, but it leaves the job without the others when its workers have ended
    reported,  ///< in the round; its workers have ended
    settled,   ///< its round is over; it may rejoin for the next one
    done,      ///< was told that the job is over, at least for this agent
  };

  AgentId id = 0;
  std::string key{};  ///< Enter::agent
  Machine machine;
  JobTimes::Milliseconds join{};  ///< its own JobTimes::join
  std::uint64_t arrival = 0;      ///< order in which agents of the job connected
  State state = State::waiting;
  std::optional<int> rank{};  ///< machine rank in its last round
  int first_role_rank = 0;    ///< as in that Round
  int role_world_size = 1;
  /// leaving, or dismissed: reason why it leaves without the others.
  std::optional<AttemptEnd> own_end{};
  /// It has no connection, and is lost only if it has none at the heartbeat timeout.
  bool is_away = false;

  Time last_heard{};              ///< arrival of its last message
  Time waits_since{};             ///< waiting, settled: start of its join timeout
  std::optional<Time> told_at{};  ///< waiting: time of the last Waiting message to it
  Time due{};                     ///< latest time for the next Membership::check_limits

  /// Encodes or decodes what is saved of it (codec.hpp).
  template <typename Coder, typename Self>
  static void code(Coder& coder, Self& self) {
    coder(self.id, self.key, self.machine, self.join, self.arrival, self.state, self.rank,
          self.own_end, self.waits_since, self.is_away, self.first_role_rank, self.role_world_size);
  }
};

/// Chooses the machines of the next round from `waiting` and returns them in order of their new
/// ranks. Machines of the last round are chosen before new ones, new ones in order of arrival.
/// Ranks are ordered by the machine rank that the user gave, the rank in the last round, host,
/// address and arrival, so they do not depend on who connected first. Without given ranks, machines
/// of the last round keep theirs if there are as many as before, and new ones get the free ones.
std::vector<Agent*> in_rank_order(std::vector<Agent*> waiting, std::size_t num_machines);

/// The agents of a job, with a queue of the times at which each must be checked.
class Agents {
 public:
  /// Adds an agent in state waiting. References stay valid until the agent is erased.
  Agent& add(AgentId id, std::string key, Machine machine);
  [[nodiscard]] Agent* find(AgentId id);
  /// Returns the agent with this key, or null. No agent has an empty key.
  [[nodiscard]] Agent* find(const std::string& key);
  void erase(const Agent& agent);
  /// The agent has a new connection.
  void reconnect(Agent& agent, AgentId id);
  void set_away(Agent& agent, bool is_away);
  /// Number of agents that are away.
  [[nodiscard]] int num_away() const noexcept { return num_away_; }

  /// Changes the state. The only way to do so, because it keeps the counts up to date.
  void move_to(Agent& agent, Agent::State state);
  void keep_own_end(Agent& agent, AttemptEnd end);
  /// Number of agents in `state`.
  [[nodiscard]] int count(Agent::State state) const {
    return counts_[static_cast<std::size_t>(state)];
  }
  /// Returns the agents in one of `states`, in order of arrival.
  [[nodiscard]] std::vector<Agent*> in(std::initializer_list<Agent::State> states);

  /// Sets Agent::due.
  void set_due(Agent& agent, Time at);
  /// Returns the agent with the earliest due time if that is not after `now`, else null.
  [[nodiscard]] Agent* due(Time now);
  /// Earliest due time; Time::max() without agents.
  [[nodiscard]] Time next_due() const {
    return by_due_.empty() ? Time::max() : by_due_.begin()->first;
  }

  [[nodiscard]] bool empty() const noexcept { return by_id_.empty(); }
  /// Returns all agents in order of arrival.
  [[nodiscard]] std::vector<Agent*> all();

  /// Encodes or decodes the agents (codec.hpp).
  template <typename Coder, typename Self>
  static void code(Coder& coder, Self& self) {
    std::vector<Agent> list;
    for (const auto& [id, agent] : self.by_id_) {
      list.push_back(agent);
    }
    std::ranges::sort(list, {}, &Agent::arrival);  // equal jobs have equal bytes
    coder(list);
    if constexpr (!std::is_const_v<Self>) {
      for (const Agent& agent : list) {
        self.restore(agent);
      }
    }
  }

  /// Estimated memory of one agent, in bytes.
  static std::size_t bytes_of(const Machine& machine);
  /// Estimated memory of all agents, in bytes.
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  static std::size_t bytes_of(const Agent& agent);
  void restore(const Agent& saved);
  int& counter(Agent::State state) { return counts_[static_cast<std::size_t>(state)]; }

  std::unordered_map<AgentId, Agent> by_id_;
  std::unordered_map<std::string, AgentId> by_key_;
  std::set<std::pair<Time, AgentId>> by_due_;  // one entry per agent, with its Agent::due
  std::array<int, 6> counts_{};                // by state
  std::uint64_t arrivals_ = 0;                 // next Agent::arrival
  int num_away_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace acc::rendezvous::rounds
