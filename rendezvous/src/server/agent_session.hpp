// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/messages.hpp"
#include "server/protocol_handler.hpp"

#include <functional>
#include <string>

namespace acc::rendezvous::rounds {

/// Protocol handler of an agent's connection: checks the hello, decodes messages and passes them to
/// `receive`. Messages to the agent do not pass through it, because most of them are not replies.
class AgentSession : public ProtocolHandler {
 public:
  /// Consumer of decoded messages. An exception that it throws ends the connection.
  using Receive = std::function<void(AgentMessage)>;

  explicit AgentSession(Receive receive) : receive_(std::move(receive)) {}

  bool step(std::string_view& bytes, std::string& out) override;
  [[nodiscard]] bool is_open() const noexcept override { return has_entered_; }
  /// More than it takes: agents are served before other clients, and none is to hold up the others.
  [[nodiscard]] unsigned cost() const noexcept override { return 128; }

 private:
  Receive receive_;
  bool said_hello_ = false;   // kHello was received
  bool has_entered_ = false;  // the first message was received
};

}  // namespace acc::rendezvous::rounds
