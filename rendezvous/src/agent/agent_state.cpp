// SPDX-License-Identifier: Apache-2.0
#include "agent/agent_state.hpp"

#include <algorithm>

namespace acc::rendezvous {
namespace {

/// Time limit of one attempt to connect and enter. It bounds the delay by a lost SYN packet.
constexpr ServerChoice::Milliseconds kAttemptTimeout{10'000};
/// The same, if the rendezvous has other addresses too.
constexpr ServerChoice::Milliseconds kBriefAttemptTimeout{2'000};

/// Time after which a token that a server has refused is proved again. A server counts wrong proofs
/// (ServerOptions::max_failed_proofs), but may read a new token later than this machine.
constexpr std::chrono::seconds kRefusalPause{30};

}  // namespace

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

ServerChoice::Milliseconds ServerChoice::attempt_timeout() const {
  return servers_.size() > 1 ? kBriefAttemptTimeout : kAttemptTimeout;
}

bool ServerChoice::choose_token() {
  if (security_) {
    token_ = token_to_prove();
  }
  return !security_ || token_;
}

bool ServerChoice::refuse_token() {
  refused_[{current_, token_->current()}] = std::chrono::steady_clock::now();
  return token_to_prove().has_value();
}

/// Returns the first of the tokens that the server has not refused a moment ago. The file of the
/// tokens may have been changed since the last connection.
std::optional<Tokens> ServerChoice::token_to_prove() const {
  const auto now = std::chrono::steady_clock::now();
  for (Tokens& token : security_->tokens.now().each()) {
    const auto found = refused_.find({current_, token.current()});
    if (found == refused_.end() || now >= found->second + kRefusalPause) {
      return std::move(token);
    }
  }
  return std::nullopt;
}

std::unique_ptr<secure::SecureLink> ServerChoice::encryption(const std::string& run_id) const {
  return security_ ? std::make_unique<secure::SecureLink>(
                         security_, current().host, secure::Admission{Role::agent, run_id}, token_)
                   : nullptr;
}

}  // namespace acc::rendezvous
