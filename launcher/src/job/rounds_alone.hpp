// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/server.hpp"
#include "job/own_servers.hpp"
#include "job/rounds.hpp"

namespace acc::launcher::job {

/// Rounds of a job on one machine: no rendezvous, only a store for its own workers.
class RoundsAlone : public Rounds {
 public:
  RoundsAlone(boost::asio::io_context& io, const LaunchPlan& plan, std::string host, Events events);

  boost::asio::awaitable<std::optional<rendezvous::Round>> next() override;
  void end(rendezvous::AttemptEnd end) override;
  boost::asio::awaitable<void> end_is_known() override;
  [[nodiscard]] const std::optional<rendezvous::AttemptEnd>& known_end() const override {
    return end_;
  }
  void force_stop() override {}
  boost::asio::awaitable<rendezvous::RoundResult> settle(bool failed, std::string report) override;
  void hurry() override {}
  boost::asio::awaitable<void> leave() override;
  boost::asio::awaitable<void> part() override;
  void close() override;
  [[nodiscard]] std::optional<std::chrono::milliseconds> status_interval() const override;
  void show(std::vector<rendezvous::RankStatus> ranks) override;
  void show_report(std::string json) override;
  [[nodiscard]] std::size_t num_clients(const rendezvous::Round& round) const override;

 private:
  boost::asio::awaitable<void> serve_store();
  void listen(const std::vector<std::string>& addresses, std::uint16_t port);
  void begin_to_show();
  void tell(const rendezvous::news::News& news);

  boost::asio::io_context& io_;
  const LaunchPlan& plan_;
  std::string host_;
  Events events_;
  std::optional<rendezvous::Server> store_;
  std::shared_ptr<rendezvous::Board> board_ = std::make_shared<rendezvous::Board>();
  std::unique_ptr<rendezvous::Server> status_port_;  ///< shows board_; null: nobody can watch
  std::optional<rendezvous::Round> round_;
  std::optional<rendezvous::AttemptEnd> end_;
};

}  // namespace acc::launcher::job
