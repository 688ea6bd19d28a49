// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/token.hpp"
#include "acc/rendezvous/agent.hpp"
#include "agent/agent_state.hpp"
#include "net/backoff.hpp"

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace acc::rendezvous {

/// State of an Agent. Messages of the server arrive in `on_message`, called by the link; they
/// update the state and open the gate `news_`, at which the awaitables wait and check the state
/// again.
///
/// agent_joining.cpp has the steps until a round is formed, agent.cpp those from there on. Held by
/// a shared_ptr, so that a pending coroutine keeps it alive when the Agent is destroyed.
struct Agent::Impl : std::enable_shared_from_this<Impl> {
  Impl(const boost::asio::any_io_executor& executor, std::string run_id, Terms terms,
       JobTimes times, Events events, std::shared_ptr<const ClientSecurity> security)
      : executor_(executor),
        events_(std::move(events)),
        enter_{
            .run_id = std::move(run_id), .terms = std::move(terms), .times = times, .machine = {}},
        servers_(std::move(security)),
        lines_(events_.on_progress),
        news_(executor),
        end_known_(executor),
        pause_(executor) {
    enter_.agent = random_token();
    end_known_.open();
  }

  void end(AttemptEnd end);
  void force_stop();
  void show(std::vector<RankStatus> ranks);
  void show_report(std::string json);
  /// Closes the connection; no callback runs after it.
  void close() noexcept;

  Awaitable<std::string> try_to_enter();
  Awaitable<std::string> connect(boost::asio::ip::tcp::socket& socket, Milliseconds limit);
  void on_token_refused(const std::string& why);
  Awaitable<void> pause_after(const std::string& failure, Backoff& backoff);
  [[nodiscard]] std::string address_from(const boost::asio::ip::tcp::socket& socket) const;
  void begin_connection(boost::asio::ip::tcp::socket socket, Milliseconds silence_limit,
                        rounds::Enter enter);
  Awaitable<std::optional<Round>> await_round();
  void on_message(rounds::ServerMessage message);
  void on_formed(Round round);
  void on_ends(AttemptEnd end);
  void on_settled(RoundResult round_result);
  void on_dropped(rounds::Dropped dropped);
  void lose(const std::string& why);
  void give_up(const std::string& why);
  Awaitable<void> come_back(std::shared_ptr<Return> coming_back);
  void stop_coming_back();
  void wait_from_now();
  [[noreturn]] void refuse(const rounds::Dropped& dropped) const;

  /// True while the round runs on this machine: its result is not known.
  [[nodiscard]] bool is_in_round() const { return round_ && !round_->result; }
  [[nodiscard]] bool is_coming_back() const { return round_ && round_->coming_back; }
  [[nodiscard]] std::chrono::steady_clock::time_point deadline() const {
    return lines_.since() + enter_.times.join;
  }

  boost::asio::any_io_executor executor_;
  Events events_;
  rounds::Enter enter_;  ///< first message of each new connection
  Machine introduced_;   ///< as in the last Enter
  ServerChoice servers_;
  AgentConnection connection_;
  Place place_;
  std::optional<OwnRound> round_;  ///< the current round, until `settle` returns
  std::optional<AttemptEnd> end_;  ///< of the round that was joined last
  WaitingLines lines_;
  Gate news_;                        ///< opened by every message and by the end of the connection
  Gate end_known_;                   ///< closed only between `end` and the server's reply
  boost::asio::steady_timer pause_;  ///< back-off between attempts to connect
};

}  // namespace acc::rendezvous
