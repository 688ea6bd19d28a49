// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/jobs.hpp"
#include "server/clients.hpp"
#include "server/durable_state.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>

namespace acc::rendezvous {

/// The agents among the clients: passes their messages to the jobs, and the jobs' messages to them.
/// Owns the timer for the deadlines of the jobs, and the retirement of the server.
class AgentConnections {
 public:
  using Id = Connection::Id;

  AgentConnections(Clients& clients, DurableState& state);

  /// Creates the protocol handler of an agent. `run_id`: the only job that it may enter; none: any.
  std::unique_ptr<ProtocolHandler> open(Id id, std::optional<std::string> run_id);
  /// The same for a server that stands by: sends the agent to the server that leads.
  std::unique_ptr<ProtocolHandler> redirect(Id id, const std::string& leader);
  void closed(Id id);
  [[nodiscard]] bool contains(Id id) const { return ids_.contains(id); }

  /// See Server::retire. While machines of a refused job are missing, the listeners stay open, so
  /// that each of them is told the reason.
  void retire(std::function<void()> done);
  void revoke_retirement() { retired_ = nullptr; }
  [[nodiscard]] bool is_retiring() const noexcept { return retired_ != nullptr; }
  /// Goes on with the retirement as far as possible. May destroy the server.
  void go_on_retiring();

  /// Tells an agent, in a last message, why it is refused.
  void refuse(Id id, const std::string& reason);
  /// Sends the messages of a job and sets the timer for the next deadline of the jobs. Messages to
  /// one agent keep their order.
  void deliver(const rounds::Outbox& out);
  /// Sets the timer for the next deadline of the jobs.
  void await_deadline();

 private:
  void receive(Id id, rounds::AgentMessage message);
  void pass_deadlines();
  void send(Id id, const rounds::ServerMessage& message);

  Clients& clients_;
  DurableState& state_;
  std::unordered_set<Id> ids_;  // connections that speak the agent protocol
  Turns::Timer timer_;
  std::function<void()> retired_;  // `done` of a pending retirement
};

}  // namespace acc::rendezvous
