#pragma once

#include "acc/rendezvous/job.hpp"

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace acc::rendezvous::rounds {

/// One agent's connection to the server: never used twice.
using AgentId = std::uint64_t;

using Time = std::chrono::steady_clock::time_point;

/// What the membership knows of one agent.
struct Agent {
  enum class State : std::uint8_t {
    waiting,   ///< for a place in a round
    running,   ///< in the round, its workers too
    leaving,   ///< the same, but it goes alone once they have ended
    reported,  ///< in the round, its workers have ended
    settled,   ///< its round is over, it may join the next
    done,      ///< has heard that the job is over, for it at least
  };

  AgentId id = 0;
  Machine machine;
  JobTimes::Milliseconds join{};
  std::uint64_t arrival = 0;
  State state = State::waiting;
  std::optional<int> rank{};  ///< in the last round
  /// Why it goes alone.
  std::optional<AttemptEnd> own_end{};

  Time last_heard{};
  Time waits_since{};             ///< waiting, settled: its join limit counts from here
  std::optional<Time> told_at{};  ///< waiting: when it last heard for what
  Time due{};                     ///< when to look at it again, at the latest
};

/// The agents of a job, and which of them to look at next.
class Agents {
 public:
  /// References stay valid until the agent is erased.
  Agent& add(AgentId id, Machine machine);
  [[nodiscard]] Agent* find(AgentId id);
  void erase(const Agent& agent);

  void move_to(Agent& agent, Agent::State state);
  void keep_own_end(Agent& agent, AttemptEnd end);
  [[nodiscard]] int count(Agent::State state) const {
    return counts_[static_cast<std::size_t>(state)];
  }
  /// In the order of arrival.
  [[nodiscard]] std::vector<Agent*> in(std::initializer_list<Agent::State> states);

  void look_again(Agent& agent, Time at);
  /// The first that is due at `now`, if there is one.
  [[nodiscard]] Agent* due(Time now);
  /// Time::max() without agents.
  [[nodiscard]] Time next_due() const {
    return by_due_.empty() ? Time::max() : by_due_.begin()->first;
  }

  [[nodiscard]] bool empty() const noexcept { return by_id_.empty(); }

  /// Memory that one agent takes, about, in bytes; of all agents in `bytes`.
  static std::size_t bytes_of(const Machine& machine);
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  static std::size_t bytes_of(const Agent& agent);
  int& counter(Agent::State state) { return counts_[static_cast<std::size_t>(state)]; }

  std::unordered_map<AgentId, Agent> by_id_;
  std::set<std::pair<Time, AgentId>> by_due_;
  std::array<int, 6> counts_{};
  std::uint64_t arrivals_ = 0;
  std::size_t bytes_ = 0;
};

}  // namespace acc::rendezvous::rounds
