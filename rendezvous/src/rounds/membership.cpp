#include "rounds/membership.hpp"

namespace acc::rendezvous::rounds {

class Membership::State {};

Membership::Membership(std::string /*run_id*/, Terms /*terms*/, JobTimes /*times*/)
    : state_(std::make_unique<State>()) {}
Membership::~Membership() = default;
Membership::Membership(Membership&&) noexcept = default;
Membership& Membership::operator=(Membership&&) noexcept = default;

void Membership::receive(AgentId, AgentMessage, Time, Outbox&) {}
void Membership::lose(AgentId, const std::string&, Time, Outbox&) {}
void Membership::pass(Time, Outbox&) {}
Time Membership::next_deadline() const {
  return Time::max();
}
bool Membership::is_forgotten(Time) const {
  return true;
}

}  // namespace acc::rendezvous::rounds
