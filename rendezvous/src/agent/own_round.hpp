// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/gate.hpp"
#include "agent/agent_connection.hpp"
#include "rounds/messages.hpp"

#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace acc::rendezvous {

/// The way back to a server that recovers, while the workers of a round go on.
struct Return {
  Return(const boost::asio::any_io_executor& executor,
         std::chrono::steady_clock::time_point give_up)
      : give_up_at(give_up), entered(executor), pause(executor) {}

  std::chrono::steady_clock::time_point give_up_at;
  Gate entered;                     ///< opened by Welcome and by the end of the connection
  boost::asio::steady_timer pause;  ///< back-off between attempts to connect
};

/// A round from Formed until `settle` returns: what the server has decided and this machine has
/// sent.
struct OwnRound {
  Round round;
  // Sent in this round; sent again on a new connection, because the server may not have them.
  std::optional<AttemptEnd> own_end{};
  bool has_forced_stop = false;
  std::optional<rounds::Report> report{};
  std::shared_ptr<Return> coming_back{};  ///< null unless the agent is connecting again
  std::optional<RoundResult> result{};

  /// Sends again what the server may not have received. `is_ended`: it has received the end.
  void repeat(AgentConnection& connection, bool is_ended) const;
  /// True if another round may be formed after the connection was lost, so that reconnecting makes
  /// sense: an elastic job, or restarts left. A static job ends with its machine 0.
  [[nodiscard]] bool may_be_followed(const Terms& terms) const;
  /// Returns the end of the attempt on this machine if the server cannot decide about it, because
  /// the connection to it is lost: `where` and `why`.
  [[nodiscard]] AttemptEnd end_alone(const rounds::Enter& enter, const std::string& where,
                                     const std::string& why) const;
  /// Returns the round result without the server, from what this machine knows.
  [[nodiscard]] RoundResult own_result(const std::optional<AttemptEnd>& end,
                                       const std::string& host) const;
  /// Prepares Enter for a server that does not know this job, because the old one was lost: it must
  /// continue the counts of rounds and restarts. Estimates whether the server counted this restart.
  void count_in(rounds::Enter& enter) const;
};

}  // namespace acc::rendezvous
