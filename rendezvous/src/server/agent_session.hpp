// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "rounds/messages.hpp"
#include "server/protocol_handler.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace acc::rendezvous {

/// Protocol handler of an agent's connection: checks the hello, decodes messages and passes them to
/// `receive`. Messages to the agent do not pass through it, because most of them are not replies.
class AgentSession : public ProtocolHandler {
 public:
  /// Consumer of decoded messages. An exception that it throws ends the connection.
  using Receive = std::function<void(rounds::AgentMessage)>;

  explicit AgentSession(Receive receive) : receive_(std::move(receive)) {}

  bool step(std::string_view& bytes, std::string& /*out*/) override {
    if (!has_hello_) {
      // Compares the bytes received so far: a wrong version is refused before the hello is
      // complete.
      if (bytes.substr(0, rounds::kHello.size()) != rounds::kHello.substr(0, bytes.size())) {
        throw Error(Errc::protocol, "not an agent that speaks this version of the agent protocol");
      }
      if (bytes.size() < rounds::kHello.size()) {
        return false;
      }
      has_hello_ = true;
      bytes.remove_prefix(rounds::kHello.size());
    }
    // The small limit of the first message bounds the memory that an unknown client can occupy.
    auto message = rounds::take_agent_message(
        bytes, has_entered_ ? rounds::kMaxMessageBytes : rounds::kMaxEnterBytes);
    if (!message) {
      return false;
    }
    has_entered_ = true;
    receive_(std::move(*message));
    return true;
  }
  [[nodiscard]] bool is_open() const noexcept override { return has_entered_; }
  /// More than it takes: agents are served before other clients, and none is to hold up the others.
  [[nodiscard]] unsigned cost() const noexcept override { return 128; }

 private:
  Receive receive_;
  bool has_hello_ = false;    // rounds::kHello was received
  bool has_entered_ = false;  // the first message was received
};

}  // namespace acc::rendezvous
