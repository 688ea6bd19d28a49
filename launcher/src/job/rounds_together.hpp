// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/agent.hpp"
#include "acc/rendezvous/tunnel.hpp"
#include "job/inquiry.hpp"
#include "job/own_servers.hpp"
#include "job/rounds.hpp"
#include "job/server_placement.hpp"

#include <boost/asio/steady_timer.hpp>

#include <functional>
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
  boost::asio::awaitable<std::optional<rendezvous::Round>> first_round();
  boost::asio::awaitable<std::optional<rendezvous::Round>> join();
  boost::asio::awaitable<std::string> find_servers();
  boost::asio::awaitable<ServerPlacement::Facts> look_up_addresses(std::string address);
  std::uint16_t serve_store_at(const std::string& address);
  bool serves_if_nobody_does();
  [[nodiscard]] rendezvous::Machine this_machine() const;

  boost::asio::io_context& io_;
  const LaunchPlan& plan_;
  const std::string host_;
  const std::string secret_;  ///< the workers' secret if this is machine 0
  const JobSecurity security_;
  const std::function<void(const std::string&)> print_line_;
  std::uint16_t port_;                        ///< of the rendezvous
  std::optional<ServerPlacement> placement_;  ///< set when the addresses have been looked up
  OwnServers servers_;
  rendezvous::Agent agent_;
  Inquiry inquiry_;                           ///< static, machine 0
  boost::asio::steady_timer pause_;           ///< until etcd is asked for servers again
  std::optional<rendezvous::Tunnel> tunnel_;  ///< to the store of the current round
};

}  // namespace acc::launcher::job
