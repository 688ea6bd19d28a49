#pragma once

#include "conversation.hpp"
#include "rounds/messages.hpp"

#include <functional>
#include <string>

namespace acc::rendezvous::rounds {

/// An agent's conversation: hands its messages on. What the agent hears does not pass here, since
/// most of it is not an answer.
class AgentSession : public Conversation {
 public:
  using Receive = std::function<void(AgentMessage)>;

  explicit AgentSession(Receive receive) : receive_(std::move(receive)) {}

  bool step(std::string_view& bytes, std::string& out) override;
  [[nodiscard]] bool is_open() const noexcept override { return has_entered_; }

 private:
  Receive receive_;
  bool said_hello_ = false;
  bool has_entered_ = false;
};

}  // namespace acc::rendezvous::rounds
