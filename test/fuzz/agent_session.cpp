// SPDX-License-Identifier: Apache-2.0
// Fuzzes the protocol handler of agents: it must decode the same messages from whole and split
// input.
#include "server/agent_session.hpp"

#include "acc/base/error.hpp"
#include "input.hpp"

#include <string>
#include <vector>

namespace {

using acc::fuzz::Cuts;
using acc::fuzz::Input;
using acc::fuzz::require;
using acc::fuzz::Unread;
using acc::rendezvous::AgentSession;
using acc::rendezvous::rounds::AgentMessage;

struct Agent {
  std::vector<AgentMessage> heard;
  bool closed = false;
  Unread unread;
  AgentSession session{[this](AgentMessage message) { heard.push_back(std::move(message)); }};

  void send(std::string_view bytes) {
    if (closed) {
      return;
    }
    std::string replies;
    try {
      unread.feed(bytes, [&](std::string_view& rest) { return session.step(rest, replies); });
    } catch (const acc::Error& error) {
      require(error.code() == acc::Errc::protocol, "bad bytes are a protocol error");
      closed = true;
    }
    require(replies.empty(), "the handler of agents writes no replies");
  }
};

/// Messages as bytes, because values in them may be NaN.
std::string encoded(const std::vector<AgentMessage>& messages) {
  std::string bytes;
  for (const AgentMessage& message : messages) {
    acc::rendezvous::rounds::encode(message, bytes);
  }
  return bytes;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  Cuts cuts(input);
  std::string_view bytes = input.rest();
  Agent whole;
  whole.send(bytes);
  Agent cut;
  while (!bytes.empty()) {
    cut.send(cuts.take_piece(bytes));
  }
  require(encoded(whole.heard) == encoded(cut.heard),
          "messages do not depend on how the bytes are split");
  require(whole.closed == cut.closed,
          "the end of the connection does not depend on how the bytes are split");
  return 0;
}
