// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/token.hpp"
#include "acc/rendezvous/agent.hpp"
#include "acc/rendezvous/gate.hpp"
#include "agent/agent_connection.hpp"
#include "agent/own_round.hpp"
#include "agent/place.hpp"
#include "agent/server_choice.hpp"
#include "agent/waiting_lines.hpp"
#include "net/backoff.hpp"

#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace acc::rendezvous {

/// State of an Agent. Messages of the server arrive in `hear`, called by the link; they update the
/// state and open the gate `news_`, at which the awaitables wait and check the state again.
///
/// agent_joining.cpp has the steps until a round is formed, agent.cpp those from there on,
/// agent_return.cpp the way back to a server that was gone during a round. Held by
/// a shared_ptr, so that a pending coroutine keeps it alive when the Agent is destroyed.
class Agent::Impl : public std::enable_shared_from_this<Impl> {
 public:
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

  Awaitable<std::optional<Round>> join(std::string host, std::uint16_t port, Machine me);
  Awaitable<void> ask(std::string host, std::uint16_t port, Machine me);
  Awaitable<std::optional<Round>> rejoin(std::uint16_t store_port);
  Awaitable<RoundResult> settle(bool failed, std::string report);
  Awaitable<void> end_is_known() { return end_known_.passed(); }
  Awaitable<void> leave();
  Awaitable<void> finish();

  void end(AttemptEnd end);
  void force_stop();
  void add_server(std::string host, std::uint16_t port) { servers_.add({std::move(host), port}); }
  [[nodiscard]] const std::optional<AttemptEnd>& known_end() const { return end_; }
  [[nodiscard]] std::optional<Milliseconds> status_interval() const noexcept {
    return connection_.status_interval();
  }
  void show(std::vector<RankStatus> ranks);
  void show_report(std::string json);
  void hurry() { give_up("the user does not wait any longer"); }

  /// Closes the connection; no callback runs after it.
  void close() noexcept;

 private:
  Awaitable<std::string> try_to_enter();
  Awaitable<std::string> connect(boost::asio::ip::tcp::socket& socket, Milliseconds limit);
  void hear_refusal(const std::string& why);
  Awaitable<void> pause_after(const std::string& failure, Backoff& backoff);
  [[nodiscard]] std::string address_from(const boost::asio::ip::tcp::socket& socket) const;
  void begin_connection(boost::asio::ip::tcp::socket socket, Milliseconds silence_limit,
                        rounds::Enter enter);
  Awaitable<std::optional<Round>> await_round();
  void hear(rounds::ServerMessage message);
  void hear_formed(Round round);
  void hear_ends(AttemptEnd end);
  void hear_settled(RoundResult round_result);
  void hear_dropped(rounds::Dropped dropped);
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
