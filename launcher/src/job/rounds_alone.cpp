// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/token.hpp"
#include "acc/rendezvous/host_addresses.hpp"
#include "acc/rendezvous/listener.hpp"
#include "acc/rendezvous/server.hpp"
#include "job/own_servers.hpp"
#include "job/rounds.hpp"

#include <unistd.h>

#include <utility>

namespace acc::launcher::job {
namespace asio = boost::asio;
using rendezvous::AttemptEnd;
using rendezvous::Round;
using rendezvous::RoundResult;
using rendezvous::Server;

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

namespace {

// Numbers of the only job and the only machine.
constexpr std::uint64_t kOwnJob = 0;
constexpr std::uint64_t kOwnAgent = 0;
constexpr std::chrono::milliseconds kStatusInterval{1'000};

}  // namespace

RoundsAlone::RoundsAlone(asio::io_context& io, const LaunchPlan& plan, std::string host,
                         Events events)
    : io_(io), plan_(plan), host_(std::move(host)), events_(std::move(events)) {}

asio::awaitable<std::optional<Round>> RoundsAlone::next() {
  if (end_ && !end_->restarts) {
    co_return std::nullopt;
  }
  if (!round_) {
    begin_to_show();
    round_.emplace();
    round_->local_world_sizes.push_back(plan_.layout.local_world_size);
    round_->role_world_size = plan_.layout.local_world_size;
    round_->secret = random_token();
    if (plan_.rendezvous.backend != RendezvousPlan::Backend::none) {
      co_await serve_store();
    }
  } else {
    ++round_->round;
    ++round_->restart_count;
    round_->num_kept = 1;
    if (store_) {
      store_->renew_store();
    }
  }
  end_.reset();
  tell(rendezvous::news::Formed{*round_, {kOwnAgent}});
  co_return round_;
}

/// Opens the port at which the job can be watched. On one machine no server knows the job, so this
/// class tells what happens in it.
void RoundsAlone::begin_to_show() {
  status_port_ = open_status_port(io_, plan_, events_.say, board_);
  const std::string& given = plan_.rendezvous.run_id;
  tell(rendezvous::news::Created{
      .run_id = given == "none" ? host_ + "-" + std::to_string(::getpid()) : given,
      .max_restarts = plan_.supervision.max_restarts});
  tell(rendezvous::news::Joined{kOwnAgent,
                                {.machine_rank = std::nullopt,
                                 .host = host_,
                                 .address = {},
                                 .local_world_size = plan_.layout.local_world_size,
                                 .pid = ::getpid()}});
}

void RoundsAlone::tell(const rendezvous::news::News& news) {
  if (status_port_) {
    board_->tell(kOwnJob, news, std::chrono::system_clock::now());
  }
}

std::optional<std::chrono::milliseconds> RoundsAlone::status_interval() const {
  return status_port_ ? std::optional(kStatusInterval) : std::nullopt;
}

void RoundsAlone::show(std::vector<rendezvous::RankStatus> ranks) {
  if (status_port_) {
    board_->update(kOwnJob, kOwnAgent, std::move(ranks), std::chrono::system_clock::now());
  }
}

void RoundsAlone::show_report(std::string json) {
  if (status_port_) {
    board_->keep_report(kOwnJob, std::move(json), std::chrono::system_clock::now());
  }
}

/// Starts the TCP store of the workers, at the plan's address or, with c10d, on loopback.
asio::awaitable<void> RoundsAlone::serve_store() {
  const bool meets_at_address = plan_.rendezvous.backend == RendezvousPlan::Backend::c10d;
  round_->store_host = meets_at_address ? "127.0.0.1" : plan_.rendezvous.address;
  const auto found = co_await rendezvous::addresses_of(io_.get_executor(), round_->store_host);
  if (found.addresses.empty()) {
    throw Error(Errc::config, "cannot listen on " + round_->store_host +
                                  ": cannot resolve this name (" + found.failure + ")");
  }
  std::vector<std::string> addresses;
  for (const auto& address : found.addresses) {
    addresses.push_back(address.to_string());
  }
  if (found.is_assumed) {
    round_->store_host = addresses.front();  // workers could not resolve the name either
  }
  listen(addresses, meets_at_address ? std::uint16_t{0} : plan_.rendezvous.port);
  round_->store_port = store_->port();
  logger(Component::launcher)
      .debug("the workers' store is at {}:{}", round_->store_host, round_->store_port);
}

/// Listens on the port. If the default port is in use (EADDRINUSE), takes a free one: only the
/// workers of this machine need to know it. Every other failure is an error.
void RoundsAlone::listen(const std::vector<std::string>& addresses, std::uint16_t port) try {
  const bool needs_port = plan_.rendezvous.port_was_given || port == 0;
  auto listeners = needs_port ? rendezvous::listen_on(addresses, port)
                              : rendezvous::listen_unless_in_use(addresses, port);
  const bool is_in_use = !listeners;
  if (is_in_use) {
    listeners = rendezvous::listen_on(addresses, 0);
  }
  const std::string warning = warning_of_all_interfaces(*listeners, round_->store_host);
  store_.emplace(io_, std::move(*listeners), rendezvous::ServerOptions{.forms_rounds = false});
  if (is_in_use && !plan_.is_quiet) {
    events_.say("port " + std::to_string(port) + " is in use by " +
                Server::port_owner(port).value_or("another process") +
                " (EADDRINUSE); the store uses the free port " + std::to_string(store_->port()));
  }
  if (!warning.empty()) {
    events_.say(warning);
  }
} catch (const Error& error) {
  throw Error(Errc::config, error.what());
}

/// The first end counts. A later one can only cancel the restart.
void RoundsAlone::end(AttemptEnd end) {
  end.machine_rank = 0;
  end.host = host_;
  end.restarts = end.restarts && round_ && round_->restart_count < plan_.supervision.max_restarts;
  const bool is_new = !end_ || (end_->restarts && !end.restarts);
  if (!end_) {
    end_ = std::move(end);
  } else {
    end_->restarts = end_->restarts && end.restarts;
  }
  if (round_ && is_new) {
    tell(rendezvous::news::Ended{*end_});
  }
}

asio::awaitable<void> RoundsAlone::end_is_known() {
  co_return;
}

asio::awaitable<RoundResult> RoundsAlone::settle(bool /*failed*/, std::string report) {
  RoundResult round_result;
  round_result.end = end_;
  round_result.machines.push_back({0, host_, std::move(report)});
  round_result.next =
      end_ && end_->restarts ? RoundResult::Next::next_round : RoundResult::Next::finished;
  tell(rendezvous::news::Reported{kOwnAgent});
  if (round_result.next == RoundResult::Next::next_round) {
    tell(rendezvous::news::Settled{});
  } else {
    tell(rendezvous::news::Over{end_});
  }
  co_return round_result;
}

asio::awaitable<void> RoundsAlone::leave() {
  co_return;
}

asio::awaitable<void> RoundsAlone::part() {
  co_return;
}

void RoundsAlone::close() {
  store_.reset();
  if (status_port_) {
    status_port_->stop();
  }
}

std::size_t RoundsAlone::num_clients(const Round& round) const {
  return store_ ? static_cast<std::size_t>(round.local_world_sizes.front()) : 0;
}

std::unique_ptr<Rounds> rounds_alone(boost::asio::io_context& io, const LaunchPlan& plan,
                                     std::string host, Rounds::Events events) {
  return std::make_unique<RoundsAlone>(io, plan, std::move(host), std::move(events));
}

}  // namespace acc::launcher::job
