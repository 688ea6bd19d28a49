#include "rounds/messages.hpp"

namespace acc::rendezvous::rounds {

void encode(const AgentMessage& /*message*/, std::string& /*out*/) {}
void encode(const ServerMessage& /*message*/, std::string& /*out*/) {}

std::optional<AgentMessage> take_agent_message(std::string_view& /*bytes*/) {
  return std::nullopt;
}

std::optional<ServerMessage> take_server_message(std::string_view& /*bytes*/) {
  return std::nullopt;
}

}  // namespace acc::rendezvous::rounds
