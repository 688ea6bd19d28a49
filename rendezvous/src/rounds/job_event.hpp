// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/agents.hpp"
#include "rounds/messages.hpp"

#include <cstdint>
#include <string>
#include <variant>

namespace acc::rendezvous::rounds {

/// The agent's connection has ended.
struct Lost {
  std::string why;
};
/// The heartbeat timeout of the agent has passed.
struct Silent {};
/// The join timeout of the agent has passed.
struct TimedOut {};
/// A time limit of the job has passed: last call, settling, or refusing.
struct LimitPassed {};
/// The server has been started again: no agent has a connection.
struct Recovered {};
/// The job is deleted.
struct Forgotten {};
/// Everything that changes a job. Heartbeats do not: which agents are silent is decided once, and
/// the decision is an event.
using Occurrence =
    std::variant<AgentMessage, Lost, Silent, TimedOut, LimitPassed, Recovered, Forgotten>;

/// An event of one job. A job is determined by its events: `Jobs::repeat` makes the same changes.
struct JobEvent {
  std::uint64_t job = 0;  ///< number of the job
  Time at{};              ///< time of the job, less `stalled`
  Time::duration stalled{};
  AgentId agent = 0;  ///< of AgentMessage, Lost, Silent, TimedOut
  Occurrence what{};
};

}  // namespace acc::rendezvous::rounds
