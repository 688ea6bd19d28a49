// SPDX-License-Identifier: Apache-2.0
#include "agent/own_round.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace acc::rendezvous {

void OwnRound::repeat(AgentConnection& connection, bool is_ended) const {
  if (own_end && !is_ended) {
    connection.send(rounds::End{*own_end});
  }
  if (has_forced_stop) {
    connection.send(rounds::ForceStop{});
  }
  if (report) {
    connection.send(*report);
  }
}

bool OwnRound::may_be_followed(const Terms& terms) const {
  return !terms.ranks_are_given && (terms.is_elastic() || round.restart_count < terms.max_restarts);
}

AttemptEnd OwnRound::end_alone(const rounds::Enter& enter, const std::string& where,
                               const std::string& why) const {
  const bool restarts = may_be_followed(enter.terms);
  if (own_end) {
    AttemptEnd end = *own_end;
    end.machine_rank = round.machine_rank;
    end.host = enter.machine.host;
    end.restarts = end.restarts && restarts;
    return end;
  }
  const char* server = enter.terms.ranks_are_given ? "machine 0" : "the rendezvous";
  return {.host = enter.machine.host,
          .exit_status = 1,
          .restarts = restarts,
          .cause = AttemptEnd::Cause::membership,
          .reason = fmt::format("the connection to {} at {} is lost: {}", server, where, why)};
}

RoundResult OwnRound::own_result(const std::optional<AttemptEnd>& end,
                                 const std::string& host) const {
  return {
      .end = end,
      .machines = {{round.machine_rank, host, report->text}},
      .next = end && end->restarts ? RoundResult::Next::next_round : RoundResult::Next::finished};
}

void OwnRound::count_in(rounds::Enter& enter) const {
  const auto& end = result->end;
  const bool used_restart = end && end->restarts &&
                            (end->cause == AttemptEnd::Cause::worker || !enter.terms.is_elastic());
  const std::int64_t restarts = std::int64_t{round.restart_count} + (used_restart ? 1 : 0);
  enter.rounds_before = std::min(round.round + 1, rounds::kMaxRoundsBefore);
  enter.restarts_before =
      static_cast<int>(std::min<std::int64_t>(restarts, enter.terms.max_restarts));
}

}  // namespace acc::rendezvous
