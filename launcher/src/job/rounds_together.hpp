// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/agent.hpp"
#include "acc/rendezvous/gate.hpp"
#include "acc/rendezvous/host_addresses.hpp"
#include "acc/rendezvous/listener.hpp"
#include "acc/rendezvous/security.hpp"
#include "acc/rendezvous/server.hpp"
#include "acc/rendezvous/tunnel.hpp"
#include "job/rounds.hpp"
#include "job/status_port.hpp"

#include <boost/asio/steady_timer.hpp>

#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::job {

/// Rounds of a job on several machines.
///
/// static: machine 0 serves the rendezvous and the workers' store at the configured address. The
/// address must be one of its own, or be forwarded to it.
///
/// c10d: a daemon, or the machine that has the configured address, serves the rendezvous. Each
/// machine prepares a store at a free port, a new one for each round, so that workers of an ended
/// round cannot reach the next round's store. Machine 0's store is used.
///
/// With a token (ACC_RENDEZVOUS_TOKEN_FILE) both servers and all connections to them are secure,
/// and the workers of each machine reach their store through a tunnel of their launcher.
///
/// Servers listen only on the interfaces at which the other machines reach them. If these are
/// unknown, they listen on all interfaces and print a warning.
class RoundsTogether : public Rounds {
 public:
  RoundsTogether(boost::asio::io_context& io, const LaunchPlan& plan, std::string host,
                 Events events);

  boost::asio::awaitable<std::optional<rendezvous::Round>> next() override;
  void end(rendezvous::AttemptEnd end) override { agent_.end(std::move(end)); }
  boost::asio::awaitable<void> end_is_known() override { return agent_.end_is_known(); }
  [[nodiscard]] const std::optional<rendezvous::AttemptEnd>& known_end() const override {
    return agent_.known_end();
  }
  void force_stop() override { agent_.force_stop(); }
  boost::asio::awaitable<rendezvous::RoundResult> settle(bool failed, std::string report) override {
    return agent_.settle(failed, std::move(report));
  }
  void hurry() override { agent_.hurry(); }
  boost::asio::awaitable<void> leave() override { return agent_.leave(); }
  boost::asio::awaitable<void> part() override;
  void close() override;
  [[nodiscard]] std::optional<std::uint16_t> tunnel() const override {
    return tunnel_ ? std::optional(tunnel_->port()) : std::nullopt;
  }
  [[nodiscard]] std::optional<std::chrono::milliseconds> status_interval() const override {
    return agent_.status_interval();
  }
  void show(std::vector<rendezvous::RankStatus> ranks) override { agent_.show(std::move(ranks)); }
  void show_report(std::string json) override { agent_.show_report(std::move(json)); }
  [[nodiscard]] std::size_t num_clients(const rendezvous::Round& round) const override;

 private:
  /// Null pointers: no token.
  struct Security {
    explicit Security(const LaunchPlan& plan);

    std::shared_ptr<const rendezvous::ServerSecurity> rendezvous_server{};
    std::shared_ptr<const rendezvous::ServerSecurity> store_server{};
    std::shared_ptr<const rendezvous::ClientSecurity> rendezvous_client{};
    std::shared_ptr<const rendezvous::ClientSecurity> store_client{};
  };

  boost::asio::awaitable<std::optional<rendezvous::Round>> next_round();
  void check_open(const std::vector<rendezvous::Listener>& listeners);
  [[nodiscard]] bool ranks_are_given() const;
  void renew_store();
  std::uint16_t serve_store_at(const std::string& address);
  std::vector<rendezvous::Listener> listen(const std::vector<std::string>& hosts,
                                           std::uint16_t port);
  boost::asio::awaitable<void> find_servers();
  boost::asio::awaitable<std::string> servers_in_etcd();
  boost::asio::awaitable<void> look_up_addresses();
  void warn_of_another_machine(const rendezvous::HostAddresses& found) const;
  [[nodiscard]] bool is_to_serve() const;
  [[nodiscard]] std::string own_server() const;
  boost::asio::awaitable<std::optional<rendezvous::Round>> join();
  boost::asio::awaitable<void> look_for_another_machine_0();
  boost::asio::awaitable<void> ask(std::string host);
  bool serves_if_nobody_does();
  bool may_come_back();
  [[nodiscard]] rendezvous::Machine this_machine() const;

  boost::asio::io_context& io_;
  const LaunchPlan& plan_;
  std::string host_;
  std::string secret_;  ///< the workers' secret if this is machine 0
  Security security_;
  std::optional<rendezvous::Tunnel> tunnel_;  ///< to the store of the current round
  std::shared_ptr<rendezvous::Board> board_;  ///< what rendezvous_ and status_port_ show
  std::unique_ptr<rendezvous::Server> status_port_;
  std::optional<rendezvous::Server> rendezvous_;  ///< static: includes the workers' store
  std::optional<rendezvous::Server> store_;       ///< c10d only
  rendezvous::Agent agent_;
  std::function<void(const std::string&)> say_;
  std::string address_;                    ///< address of the rendezvous for all machines
  std::uint16_t port_;                     ///< its port
  bool meets_at_daemons_ = false;          ///< c10d: at one of several that replace each other
  std::vector<std::string> server_hosts_;  ///< own addresses on which the rendezvous listens
  std::vector<std::string> local_hosts_;   ///< own addresses for --local-addr, if given
  std::vector<std::string> store_hosts_;   ///< c10d: own addresses on which the stores listen
  bool is_own_address_ = false;            ///< `address_` is one of this machine's addresses
  bool has_warned_ = false;                ///< about listening on all interfaces
  bool should_serve_ = false;              ///< the rendezvous belongs on this machine
  bool has_joined_ = false;
  bool is_joining_ = false;
  std::optional<rendezvous::Agent> asker_;  ///< static, machine 0: looks for another machine 0
  boost::asio::steady_timer pause_;         ///< until `asker_` asks again
  std::exception_ptr refusal_;              ///< the answer that refused this machine
  /// Time of the first failed connection attempt since the server was lost.
  std::optional<std::chrono::steady_clock::time_point> server_gone_since_;
};

}  // namespace acc::launcher::job
