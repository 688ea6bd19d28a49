// SPDX-License-Identifier: Apache-2.0
#include "rounds/codec.hpp"
#include "rounds/membership.hpp"

// A job as bytes, for the server's log.
namespace acc::rendezvous::rounds {

template <>
constexpr auto kFields<Agent> = std::tuple{&Agent::id,
                                           &Agent::key,
                                           &Agent::machine,
                                           &Agent::join,
                                           &Agent::arrival,
                                           &Agent::state,
                                           &Agent::rank,
                                           &Agent::own_end,
                                           &Agent::waits_since,
                                           &Agent::is_away,
                                           &Agent::first_role_rank,
                                           &Agent::role_world_size};
template <>
constexpr auto kFields<phase::Gathering::Shortage> =
    std::tuple{&phase::Gathering::Shortage::since, &phase::Gathering::Shortage::most_waiting};
template <>
constexpr auto kFields<phase::Gathering::LastCall> = std::tuple{&phase::Gathering::LastCall::until};
template <>
constexpr auto kFields<phase::Gathering> = std::tuple{
    &phase::Gathering::is_first, &phase::Gathering::needs_last_call, &phase::Gathering::wait};
template <>
constexpr auto kFields<phase::Ending> =
    std::tuple{&phase::Ending::end, &phase::Ending::uses_restart, &phase::Ending::settle_by};
template <>
constexpr auto kFields<phase::InRound> =
    std::tuple{&phase::InRound::attempt, &phase::InRound::round, &phase::InRound::ending,
               &phase::InRound::is_force_stopped};
template <>
constexpr auto kFields<phase::Refused> = std::tuple{
    &phase::Refused::reason,    &phase::Refused::since,      &phase::Refused::fewest_wanted,
    &phase::Refused::told,      &phase::Refused::ranks_told, &phase::Refused::num_told,
    &phase::Refused::told_bytes};
template <>
constexpr auto kFields<phase::Over> = std::tuple{&phase::Over::since, &phase::Over::refuses_until};

template <typename Coder, typename Self>
void Membership::code(Coder& coder, Self& self) {
  coder(self.run_id_, self.terms_, self.times_, self.founder_, self.founding_bytes_, self.agents_,
        self.next_round_, self.restart_count_, self.claims_, self.missing_, self.phase_,
        self.result_, self.now_, self.stalled_);
}

Membership::Membership(std::string_view saved, bool recovers)
    : founding_bytes_(0), recovers_(recovers) {
  Reader reader(saved);
  code(reader, *this);
  reader.expect_end();
  for (const Agent* agent : agents_.all()) {
    if (agent->machine.serves) {
      server_ = agent->machine;
    }
  }
  describe_state();
}

std::string Membership::save() const {
  std::string bytes;
  Writer writer(bytes);
  code(writer, *this);
  return bytes;
}

}  // namespace acc::rendezvous::rounds
