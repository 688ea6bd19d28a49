// SPDX-License-Identifier: Apache-2.0
#include "server/agent_session.hpp"

#include "acc/base/error.hpp"

#include <utility>

namespace acc::rendezvous::rounds {

bool AgentSession::step(std::string_view& bytes, std::string& /*out*/) {
  if (!said_hello_) {
    // Compares the bytes received so far: a wrong version is refused before the hello is complete.
    if (bytes.substr(0, kHello.size()) != kHello.substr(0, bytes.size())) {
      throw Error(Errc::protocol, "not an agent that speaks this version of the agent protocol");
    }
    if (bytes.size() < kHello.size()) {
      return false;
    }
    said_hello_ = true;
    bytes.remove_prefix(kHello.size());
  }
  // The small limit of the first message bounds the memory that an unknown client can occupy.
  auto message = take_agent_message(bytes, has_entered_ ? kMaxMessageBytes : kMaxEnterBytes);
  if (!message) {
    return false;
  }
  has_entered_ = true;
  receive_(std::move(*message));
  return true;
}

}  // namespace acc::rendezvous::rounds
