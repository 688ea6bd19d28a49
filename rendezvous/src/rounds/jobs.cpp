#include "rounds/jobs.hpp"

namespace acc::rendezvous::rounds {

void Jobs::receive(AgentId, AgentMessage, Time, Outbox&) {}
void Jobs::lose(AgentId, const std::string&, Time, Outbox&) {}
void Jobs::pass(Time, Outbox&) {}
Time Jobs::next_deadline() const {
  return Time::max();
}

}  // namespace acc::rendezvous::rounds
