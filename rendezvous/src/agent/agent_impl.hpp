// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/token.hpp"
#include "acc/rendezvous/agent.hpp"
#include "acc/rendezvous/gate.hpp"
#include "agent/agent_link.hpp"
#include "net/backoff.hpp"

#include <boost/asio/steady_timer.hpp>
#include <fmt/format.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace acc::rendezvous {

/// Time limit of one attempt to connect and enter. It bounds the delay by a lost SYN packet.
inline constexpr Agent::Milliseconds kAttemptTimeout{10'000};
/// The same, if the rendezvous has other addresses too.
inline constexpr Agent::Milliseconds kBriefAttemptTimeout{2'000};

/// Time after which a token that a server has refused is proved again. A server counts wrong proofs
/// (ServerOptions::max_failed_proofs), but may read a new token later than this machine.
inline constexpr std::chrono::seconds kRefusalPause{30};

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
        security_(std::move(security)),
        enter_{
            .run_id = std::move(run_id), .terms = std::move(terms), .times = times, .machine = {}},
        news_(executor),
        entered_(executor),
        end_known_(executor),
        pause_(executor),
        return_pause_(executor) {
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
  void add_server(std::string host, std::uint16_t port) {
    servers_.push_back({std::move(host), port});
  }
  [[nodiscard]] const std::optional<AttemptEnd>& known_end() const { return end_; }
  [[nodiscard]] std::optional<Milliseconds> status_interval() const noexcept;
  void show(std::vector<RankStatus> ranks);
  void show_report(std::string json);
  void hurry() { give_up("the user does not wait any longer"); }

  /// Closes the connection; no callback runs after it.
  void close() noexcept;

 private:
  Awaitable<std::string> try_to_enter();
  Awaitable<std::string> connect(boost::asio::ip::tcp::socket& socket, Milliseconds limit);
  [[nodiscard]] std::optional<Tokens> token_to_prove() const;
  void hear_refusal(const std::string& why);
  Awaitable<void> pause_after(const std::string& failure, Backoff& backoff);
  [[nodiscard]] std::string address_from(const boost::asio::ip::tcp::socket& socket) const;
  std::shared_ptr<AgentLink> make_link(boost::asio::ip::tcp::socket socket,
                                       Milliseconds silence_limit, bool comes_back);
  Awaitable<std::optional<Round>> await_round();
  void hear(rounds::ServerMessage message);
  void hear_formed(Round round);
  void hear_ends(AttemptEnd end);
  void hear_settled(RoundResult round_result);
  void hear_dropped(rounds::Dropped dropped);
  [[nodiscard]] bool may_come_back() const;
  void lose(const std::string& why);
  void give_up(const std::string& why);
  [[nodiscard]] AttemptEnd end_alone() const;
  Awaitable<void> come_back();
  void enter_again(boost::asio::ip::tcp::socket socket);
  void stop_coming_back();
  void wait_from_now();
  void say_what_is_waited_for(const std::string& what, const std::string& limit = "");
  [[noreturn]] void refuse(const rounds::Dropped& dropped) const;
  void remember_round();
  [[nodiscard]] RoundResult own_round_result(std::string report) const;

  template <typename Message>
  void send(Message message) {
    if (link_) {
      link_->send(std::move(message));
    }
  }

  /// An address of the rendezvous.
  struct ServerAddress {
    std::string host;
    std::uint16_t port = 0;
  };

  /// The next attempt to connect is made at the next address. True if it was not tried since the
  /// last pause: no pause is needed.
  bool try_next_server() {
    server_ = (server_ + 1) % servers_.size();
    num_tried_ = (num_tried_ + 1) % servers_.size();
    return num_tried_ != 0;
  }
  [[nodiscard]] const ServerAddress& server() const { return servers_[server_]; }
  [[nodiscard]] Milliseconds attempt_timeout() const {
    return servers_.size() > 1 ? kBriefAttemptTimeout : kAttemptTimeout;
  }
  [[nodiscard]] std::string where() const {
    return fmt::format("{}:{}", server().host, server().port);
  }
  [[nodiscard]] std::chrono::steady_clock::time_point deadline() const {
    return waiting_since_ + enter_.times.join;
  }

  boost::asio::any_io_executor executor_;
  Events events_;
  std::shared_ptr<const ClientSecurity> security_;  ///< null: connections are not encrypted
  rounds::Enter enter_;                             ///< first message of each new connection
  std::vector<ServerAddress> servers_{{}};          ///< the first is the one of `join`
  std::size_t server_ = 0;                          ///< the current one
  std::size_t num_tried_ = 0;                       ///< since the last pause
  std::optional<Tokens> token_;                     ///< proved on the current connection
  /// Times at which a server, by its index, has refused a token.
  std::map<std::pair<std::size_t, std::string>, std::chrono::steady_clock::time_point> refused_;
  bool was_welcome_ = false;                ///< a server has admitted this machine
  std::shared_ptr<AgentLink> link_;         ///< null: there is no connection
  std::string why_lost_;                    ///< reason of the last loss of the connection
  bool closed_ = false;                     ///< by `leave` or `close`
  Gate news_;                               ///< opened by every message and by the end of the link
  Gate entered_;                            ///< opened by Welcome and by the end of the link
  Gate end_known_;                          ///< closed only between `end` and the server's reply
  boost::asio::steady_timer pause_;         ///< back-off between attempts to connect
  boost::asio::steady_timer return_pause_;  ///< the same, while the workers go on
  std::chrono::steady_clock::time_point waiting_since_;           ///< start of the join timeout
  std::optional<std::chrono::steady_clock::time_point> said_at_;  ///< last on_progress

  // A server that recovers (Welcome::recovers): the workers go on while it is gone.
  bool recovers_ = false;
  Milliseconds status_interval_{0};                   ///< Welcome::status_interval
  bool is_coming_back_ = false;                       ///< `come_back` runs
  int return_turn_ = 0;                               ///< number of the `come_back` that counts
  std::chrono::steady_clock::time_point give_up_at_;  ///< limit of `come_back`
  Machine introduced_;                                ///< as in the last Enter
  // Sent in this round; sent again on a new connection, because the server may not have them.
  std::optional<AttemptEnd> own_end_;
  std::optional<rounds::Report> report_;
  bool has_forced_stop_ = false;

  // Results, since the last join or rejoin.
  bool welcome_ = false;  ///< the server has admitted this connection
  bool over_ = false;     ///< the job has ended without another round
  std::optional<rounds::Dropped> dropped_;
  std::optional<Round> round_;  ///< the current round, until `settle` returns
  std::optional<AttemptEnd> end_;
  std::optional<RoundResult> round_result_;
};

}  // namespace acc::rendezvous
