#pragma once

#include "rounds/messages.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace acc::rendezvous::rounds {

/// One agent's connection to the server: never used twice.
using AgentId = std::uint64_t;

using Time = std::chrono::steady_clock::time_point;

/// What the server is to send, in this order. After a Dropped it closes the connection, and the
/// membership knows the agent no more.
using Outbox = std::vector<std::pair<AgentId, ServerMessage>>;

/// The agents of one job, and the rounds that they form: a pure state machine. Events and the time
/// come in, messages go out; it reads no clock and knows no socket, so a test can walk through any
/// order of events at any speed.
class Membership {
 public:
  Membership(std::string run_id, Terms terms, JobTimes times);
  ~Membership();
  Membership(Membership&&) noexcept;
  Membership& operator=(Membership&&) noexcept;

  /// The first message is Enter. Throws Error(protocol) for one that does not fit the agent's state
  /// and that no race explains.
  void receive(AgentId agent, AgentMessage message, Time now, Outbox& out);
  /// Its connection has ended. `why` is for the other machines' users.
  void lose(AgentId agent, const std::string& why, Time now, Outbox& out);
  /// Does what is due.
  void pass(Time now, Outbox& out);
  /// When `pass` has something to do; Time::max(): never.
  [[nodiscard]] Time next_deadline() const;

  /// The job is over and nothing of it needs to be kept: no agent is here, and late comers need not
  /// be told any more.
  [[nodiscard]] bool is_forgotten(Time now) const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace acc::rendezvous::rounds
