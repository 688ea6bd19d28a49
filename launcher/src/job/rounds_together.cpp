// SPDX-License-Identifier: Apache-2.0
// Rounds of a job on several machines. rendezvous::Agent speaks the protocol (docs/protocol.md),
// and ServerPlacement decides whether this machine serves the rendezvous, and where. Names are
// looked up once at the start, because answers may change during a long job.
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/token.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "acc/rendezvous/agent.hpp"
#include "acc/rendezvous/etcd_address.hpp"
#include "acc/rendezvous/gate.hpp"
#include "acc/rendezvous/host_addresses.hpp"
#include "acc/rendezvous/main_process.hpp"
#include "acc/rendezvous/tunnel.hpp"
#include "job/inquiry.hpp"
#include "job/own_servers.hpp"
#include "job/rounds.hpp"
#include "job/server_placement.hpp"
#include "plan/agreed_terms.hpp"
#include "plan/rendezvous_values.hpp"
#include "supervision/supervisor.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace acc::launcher::job {
namespace asio = boost::asio;
using rendezvous::Agent;
using rendezvous::Machine;
using rendezvous::Round;
using rendezvous::Server;

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
    return tunnels_.empty() ? std::nullopt : std::optional(tunnels_.back()->port());
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
  Inquiry inquiry_;                  ///< static, machine 0
  boost::asio::steady_timer pause_;  ///< until etcd is asked for servers again
  /// To the stores of this machine's workers. The last one is that of the current round.
  std::vector<std::unique_ptr<rendezvous::Tunnel>> tunnels_;
};

namespace {

/// True for an error that does not go away by itself.
bool is_bad_input(const Error& error) {
  return acc::exit_status(error) == 2;
}

/// Returns the time that a machine may need to report after the end of an attempt: the shutdown
/// timeout until SIGKILL, time for the workers and then for their leftovers to die, and a margin
/// for messages. A machine that takes longer counts as lost.
std::chrono::milliseconds time_to_settle(const LaunchPlan& plan) {
  constexpr std::chrono::seconds kGrace{5};
  return plan.supervision.shutdown_timeout +
         2 * std::max<std::chrono::milliseconds>(plan.supervision.shutdown_timeout,
                                                 supervision::Supervisor::kTimeToDie) +
         kGrace;
}

rendezvous::Terms terms(const LaunchPlan& plan) {
  const bool by_rank = ranks_are_given(plan);
  return {.ranks_are_given = by_rank,
          .num_machines = plan.layout.num_machines,
          .min_machines = by_rank ? plan.layout.num_machines : plan.rendezvous.min_machines,
          .num_processes = plan.layout.num_processes.value_or(0),
          .max_restarts = plan.supervision.max_restarts,
          .agreed = plan::agreed_terms(plan)};
}

rendezvous::JobTimes times(const LaunchPlan& plan) {
  return {.join = plan.rendezvous.join_timeout,
          .last_call = plan.rendezvous.last_call_timeout,
          .heartbeat = plan.rendezvous.heartbeat_timeout,
          .settle = time_to_settle(plan),
          .close = plan.rendezvous.close_timeout};
}

/// True if a rendezvous address names several daemons that replace each other, or an etcd in which
/// they are registered.
bool is_at_daemons(const std::string& address) {
  return rendezvous::is_etcd_address(address) || address.find(',') != std::string::npos;
}

/// Returns the daemons that are registered in the plan's etcd, joined by commas. Waits until there
/// is one, for at most the join timeout, unless `pause` is cancelled.
asio::awaitable<std::string> servers_in_etcd(const RendezvousPlan& plan, asio::steady_timer& pause,
                                             std::function<void(const std::string&)> say) {
  constexpr std::chrono::seconds kInterval{1};
  const auto deadline = std::chrono::steady_clock::now() + plan.join_timeout;
  const rendezvous::EtcdAddress etcd =
      rendezvous::parse_etcd_address(plan.address, plan.etcd_files);
  for (bool has_said = false; true; has_said = true) {
    std::string failure =
        "no acc-rendezvous is registered there; start one with --state " + plan.address;
    std::vector<std::string> servers;
    asio::thread_pool background(1);  // the signals of this thread do not wait
    try {
      servers = co_await asio::co_spawn(
          background,
          [&etcd]() -> asio::awaitable<std::vector<std::string>> {
            co_return rendezvous::servers_in_etcd(etcd);
          },
          asio::use_awaitable);
    } catch (const Error& error) {
      if (is_bad_input(error)) {
        throw;
      }
      failure = error.what();
    }
    if (!servers.empty()) {
      co_return fmt::format("{}", fmt::join(servers, ","));
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(Errc::timeout,
                  "timeout: no rendezvous found in " + plan.address + ": " + failure);
    }
    if (!has_said) {
      say("waiting for a rendezvous in " + plan.address + " (" + failure + ")");
    }
    pause.expires_after(kInterval);
    const auto [cancelled] = co_await pause.async_wait(asio::as_tuple(asio::use_awaitable));
    if (cancelled) {
      throw Error(Errc::timeout, "the job is closed before it has found a rendezvous");
    }
  }
}

/// Returns the warning of a machine 0 that does not have the configured address. Usually the
/// machine rank or the address is wrong; sometimes a gateway forwards the address.
std::string warning_of_another_machine(const std::string& address,
                                       const rendezvous::HostAddresses& found) {
  std::vector<std::string> addresses;
  for (const auto& each : found.addresses) {
    addresses.push_back(each.to_string());
  }
  const bool is_known = !addresses.empty();
  const rendezvous::Advice advice = is_known
                                        ? rendezvous::main_process_elsewhere(address, addresses)
                                        : rendezvous::main_process_unknown(address, found.failure);
  return "warning: " + advice.what + ". " + advice.what_to_do +
         (is_known ? " Ignore this if a gateway or service forwards that address to this machine"
                   : "");
}

}  // namespace

RoundsTogether::RoundsTogether(asio::io_context& io, const LaunchPlan& plan, std::string host,
                               Events events)
    : io_(io),
      plan_(plan),
      host_(std::move(host)),
      secret_(random_token()),
      security_(plan),
      print_line_(events.say),
      port_(plan.rendezvous.port),
      servers_(io, plan, security_, events.say),
      agent_(io.get_executor(), plan.rendezvous.run_id, terms(plan), times(plan),
             {.on_end = std::move(events.on_end),
              .on_force_stop = std::move(events.on_force_stop),
              .on_progress = events.say,
              .before_connecting = [this] { return serves_if_nobody_does(); },
              .before_entering =
                  [this](const std::string& address) { return serve_store_at(address); }},
             security_.rendezvous_client),
      inquiry_(io,
               [this] {
                 rendezvous::JobTimes short_times = times(plan_);
                 short_times.join = std::chrono::seconds(5);
                 return std::make_unique<Agent>(io_.get_executor(), plan_.rendezvous.run_id,
                                                terms(plan_), short_times, Agent::Events{},
                                                security_.rendezvous_client);
               }),
      pause_(io) {}

asio::awaitable<std::optional<Round>> RoundsTogether::next() {
  // Where a machine joins, workers leave the last round between two steps, and use its store until
  // then.
  const auto& end = agent_.known_end();
  const bool keeps_last = end && end->cause == rendezvous::AttemptEnd::Cause::join;
  if (!keeps_last) {
    tunnels_.clear();
  }
  std::optional<Round> round;
  if (!placement_) {
    round = co_await first_round();
  } else {
    placement_->rejoin();
    servers_.renew_store(placement_->facts().address, keeps_last);
    round = co_await agent_.rejoin(servers_.store_port());
  }
  if (round && security_.store_client) {
    tunnels_.push_back(std::make_unique<rendezvous::Tunnel>(
        io_, std::uint16_t{0},
        rendezvous::Tunnel::Target{round->store_host, round->store_port, plan_.rendezvous.run_id},
        security_.store_client, print_line_));
  }
  co_return round;
}

asio::awaitable<std::optional<Round>> RoundsTogether::first_round() {
  const std::string found = co_await find_servers();
  placement_.emplace(co_await look_up_addresses(found));
  const std::string& address = placement_->facts().address;
  logger(Component::launcher)
      .debug("this machine {} the rendezvous at {}",
             placement_->is_here() ? "serves" : "connects to", address);
  if (port_ == 0 && !serves_if_nobody_does()) {  // this machine is to choose a free port
    throw Error(Errc::config, "machines cannot meet at " + plan_.rendezvous.address +
                                  ":0; set a port that all machines know");
  }
  if (placement_->may_have_rival()) {
    // Both machines would wait for the others, and one of them forever.
    asio::co_spawn(io_,
                   inquiry_.ask_repeatedly(address, plan_.rendezvous.port, this_machine(),
                                           [this] { agent_.close(); }),
                   asio::detached);
  }
  std::optional<Round> round;
  std::exception_ptr fault;
  try {
    round = co_await join();
  } catch (...) {
    fault = std::current_exception();
  }
  inquiry_.stop();
  if (fault && placement_->is_machine_0() && !servers_.serves_rendezvous()) {
    // A launcher of the same job may use the port.
    co_await inquiry_.ask(placement_->own_server(), plan_.rendezvous.port, this_machine());
  }
  fault = inquiry_.refusal() ? inquiry_.refusal() : fault;
  if (fault) {
    std::rethrow_exception(fault);
  }
  if (round && round->machine_rank == 0 && !servers_.has_status_port() &&
      !plan_.settings.text("status_port"_key).empty()) {
    print_line_(
        "--status_port has no effect on this machine: the job can be watched at the port of the "
        "rendezvous, " +
        std::to_string(port_) + " of " + address);
  }
  co_return round;
}

/// Joins the first round. If a machine that should serve finds another process at its port and that
/// does not answer as a rendezvous, the timeout becomes an error about the port.
asio::awaitable<std::optional<Round>> RoundsTogether::join() {
  try {
    co_return co_await agent_.join(placement_->host_to_join(), port_, this_machine());
  } catch (const Error& error) {
    if (!placement_->is_here() || servers_.serves_rendezvous() || error.code() != Errc::timeout) {
      throw;
    }
    throw Error(Errc::config,
                std::string(error.what()) + "; " +
                    Server::port_owner(plan_.rendezvous.port).value_or("another process") +
                    " listens there; choose another port");
  }
}

/// Starts the store that the workers use if this machine becomes machine 0. `address` is the one
/// that the other machines will get. Returns the store's port. With static ranks the rendezvous
/// server is the store.
std::uint16_t RoundsTogether::serve_store_at(const std::string& address) {
  return ranks_are_given(plan_)
             ? plan_.rendezvous.port
             : servers_.serve_store(placement_->store_hosts(address), placement_->facts().address);
}

/// Returns the address of the rendezvous. If the plan names several daemons, or an etcd in which
/// they are registered, it is that of the first one, and the agent is told the others.
asio::awaitable<std::string> RoundsTogether::find_servers() {
  std::string servers = plan_.rendezvous.address;
  if (!is_at_daemons(servers)) {
    co_return servers;
  }
  if (rendezvous::is_etcd_address(servers)) {
    servers = co_await servers_in_etcd(plan_.rendezvous, pause_, print_line_);
  }
  const auto endpoints = plan::read_endpoints({servers, plan_.rendezvous.address});
  port_ = endpoints.front().port.value_or(port_);
  for (std::size_t i = 1; i < endpoints.size(); ++i) {
    agent_.add_server(endpoints[i].host, endpoints[i].port.value_or(port_));
  }
  co_return endpoints.front().host;
}

asio::awaitable<ServerPlacement::Facts> RoundsTogether::look_up_addresses(std::string address) {
  const RendezvousPlan& plan = plan_.rendezvous;
  const auto found = co_await rendezvous::addresses_of(io_.get_executor(), address);
  ServerPlacement::Facts facts{
      .ranks_are_given = ranks_are_given(plan_),
      .machine_rank = plan_.layout.machine_rank,
      .is_host = plan.is_host,
      .meets_at_daemons = is_at_daemons(plan.address),
      .address = found.is_assumed ? found.addresses.front().to_string() : address,
      .is_own_address = std::ranges::any_of(found.addresses, rendezvous::is_own_address),
      .server_hosts = rendezvous::hosts_to_listen_on(address, found),
      .local_address = plan.local_address,
      .patience = plan.heartbeat_timeout};
  if (!plan.local_address.empty()) {
    facts.local_hosts = rendezvous::hosts_to_listen_on(
        plan.local_address,
        co_await rendezvous::addresses_of(io_.get_executor(), plan.local_address));
  }
  if (ServerPlacement(facts).may_have_rival()) {
    print_line_(warning_of_another_machine(facts.address, found));
  }
  co_return facts;
}

/// Called before each connection attempt. Starts the rendezvous server if this machine should serve
/// and the port is free. With c10d the port may belong to a daemon or to another launcher on this
/// machine; if that ends and does not come back soon, this launcher takes over. True if this
/// launcher serves.
bool RoundsTogether::serves_if_nobody_does() {
  if (servers_.serves_rendezvous() || !placement_->is_to_listen(std::chrono::steady_clock::now())) {
    return servers_.serves_rendezvous();
  }
  try {
    servers_.serve_rendezvous(placement_->facts().server_hosts, placement_->facts().address);
    port_ = servers_.rendezvous()->port();
  } catch (const Error& error) {
    if (placement_->must_serve() || is_bad_input(error)) {
      throw Error(Errc::config, error.what());
    }
  }
  if (servers_.serves_rendezvous()) {
    servers_.open_status_port();
  }
  return servers_.serves_rendezvous();
}

Machine RoundsTogether::this_machine() const {
  const RendezvousPlan& plan = plan_.rendezvous;
  Machine machine{.machine_rank = std::nullopt,
                  .host = host_,
                  .address = plan.local_address,
                  .store_port = servers_.store_port(),
                  .local_world_size = plan_.layout.local_world_size,
                  .pid = ::getpid(),
                  .secret = secret_,
                  .role = plan_.role};
  if (ranks_are_given(plan_) || plan.machine_rank_was_given) {
    machine.machine_rank = plan_.layout.machine_rank;
  }
  if (ranks_are_given(plan_)) {
    machine.address = placement_->facts().address;
  }
  return machine;
}

/// Keeps serving while another machine needs this machine's server: the job's other machines
/// receive their last answers, late machines are told that the job is over, and jobs with other run
/// ids may use the same server.
asio::awaitable<void> RoundsTogether::part() {
  co_await agent_.finish();
  Server* const server = servers_.rendezvous();
  if (server == nullptr) {
    co_return;
  }
  constexpr std::chrono::seconds kLastAnswers{2};
  if (server->is_refusing()) {
    print_line_("staying for up to " + std::to_string(plan_.rendezvous.close_timeout.count()) +
                " s, to inform machines that are still to come");
  }
  rendezvous::Gate unattended(io_.get_executor());
  asio::steady_timer patience(io_, kLastAnswers);
  patience.async_wait([this, server](const boost::system::error_code& error) {
    if (!error && !server->is_refusing()) {
      print_line_("other jobs use the rendezvous on this machine: serving them until they end");
    }
  });
  server->retire([&unattended] { unattended.open(); });
  co_await unattended.passed();
}

void RoundsTogether::close() {
  agent_.close();
  tunnels_.clear();
  pause_.cancel();
  inquiry_.close();
  servers_.close();
}

std::size_t RoundsTogether::num_clients(const Round& round) const {
  std::size_t count =
      servers_.serves_rendezvous() ? static_cast<std::size_t>(round.num_machines()) : 0;
  if (!tunnels_.empty()) {  // two sockets for each worker of this machine
    count += 2 * static_cast<std::size_t>(plan_.layout.local_world_size);
  }
  if (round.machine_rank == 0) {
    for (const int size : round.local_world_sizes) {
      count += static_cast<std::size_t>(size);
    }
  }
  return count;
}

std::unique_ptr<Rounds> rounds_together(boost::asio::io_context& io, const LaunchPlan& plan,
                                        std::string host, Rounds::Events events) {
  return std::make_unique<RoundsTogether>(io, plan, std::move(host), std::move(events));
}

}  // namespace acc::launcher::job
