// SPDX-License-Identifier: Apache-2.0
// Rounds of a job on several machines. rendezvous::Agent speaks the protocol (docs/protocol.md);
// this class decides which machine serves the rendezvous, at which addresses, and where the
// workers' store is. It looks names up once at the start, since answers may change during a long
// job.
#include "job/rounds_together.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/token.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "acc/rendezvous/etcd_servers.hpp"
#include "acc/rendezvous/main_process.hpp"
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
#include <cstdlib>
#include <utility>

namespace acc::launcher::job {
namespace asio = boost::asio;
using rendezvous::Agent;
using rendezvous::Machine;
using rendezvous::Round;
using rendezvous::Server;

namespace {

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
  const bool by_rank = plan.rendezvous.backend == RendezvousPlan::Backend::fixed;
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

/// Returns the token of the job; empty: there is none. Read here and not by the plan: `explain`
/// prints the plan.
std::optional<rendezvous::Tokens> tokens_of(const LaunchPlan& plan) {
  if (const char* token = std::getenv("ACC_RENDEZVOUS_TOKEN"); token != nullptr && *token != 0) {
    return rendezvous::Tokens({token});
  }
  if (auto tokens = rendezvous::tokens_of_environment()) {
    return tokens;
  }
  if (plan.settings.boolean("secure"_key)) {
    throw Error(Errc::config,
                "--secure needs a token: set ACC_RENDEZVOUS_TOKEN_FILE to a file with the same "
                "token on every machine, or let acclaunch start the machines");
  }
  return std::nullopt;
}

}  // namespace

/// The store of a round is for one job, as is the server of static ranks, which includes it. A
/// server of c10d may serve other run ids too, if the token is not for one job. The certificate
/// authority concerns a daemon only.
RoundsTogether::Security::Security(const LaunchPlan& plan) {
  if (plan.settings.boolean("secure"_key) && plan.settings.boolean("insecure"_key)) {
    throw Error(Errc::config, "--secure and --insecure contradict each other; give one of them");
  }
  const auto tokens = tokens_of(plan);
  if (!tokens) {
    return;
  }
  const bool is_for_one_job =
      plan.rendezvous.backend == RendezvousPlan::Backend::fixed || tokens->is_for_one_job();
  store_server = rendezvous::ServerSecurity::make(tokens, {}, plan.rendezvous.run_id);
  rendezvous_server = is_for_one_job ? store_server : rendezvous::ServerSecurity::make(tokens, {});
  store_client = rendezvous::ClientSecurity::make(*tokens, {});
  rendezvous_client =
      rendezvous::ClientSecurity::make(*tokens, rendezvous::client_files_of_environment());
}

RoundsTogether::RoundsTogether(asio::io_context& io, const LaunchPlan& plan, std::string host,
                               Events events)
    : io_(io),
      plan_(plan),
      host_(std::move(host)),
      secret_(random_token()),
      security_(plan),
      board_(std::make_shared<rendezvous::Board>()),
      agent_(io.get_executor(), plan.rendezvous.run_id, terms(plan), times(plan),
             {.on_end = std::move(events.on_end),
              .on_force_stop = std::move(events.on_force_stop),
              .on_progress = events.say,
              .before_connecting = [this] { return serves_if_nobody_does(); },
              .before_entering =
                  [this](const std::string& address) { return serve_store_at(address); }},
             security_.rendezvous_client),
      say_(std::move(events.say)),
      address_(plan.rendezvous.address),
      port_(plan.rendezvous.port),
      pause_(io) {}

bool RoundsTogether::ranks_are_given() const {
  return plan_.rendezvous.backend == RendezvousPlan::Backend::fixed;
}

asio::awaitable<std::optional<Round>> RoundsTogether::next() {
  tunnel_.reset();
  auto round = co_await next_round();
  if (round && security_.store_client) {
    tunnel_.emplace(
        io_, std::uint16_t{0},
        rendezvous::Tunnel::Target{round->store_host, round->store_port, plan_.rendezvous.run_id},
        security_.store_client, say_);
  }
  co_return round;
}

asio::awaitable<std::optional<Round>> RoundsTogether::next_round() {
  if (has_joined_) {
    server_gone_since_.reset();
    renew_store();
    co_return co_await agent_.rejoin(store_ ? store_->port() : plan_.rendezvous.port);
  }
  co_await find_servers();
  co_await look_up_addresses();
  should_serve_ = is_to_serve();
  logger(Component::launcher)
      .debug("this machine {} the rendezvous at {}", should_serve_ ? "serves" : "connects to",
             address_);
  if (port_ == 0 && !serves_if_nobody_does()) {  // this machine is to choose a free port
    throw Error(Errc::config, "machines cannot meet at " + plan_.rendezvous.address +
                                  ":0; set a port that all machines know");
  }
  is_joining_ = true;
  if (ranks_are_given() && should_serve_ && !is_own_address_) {
    asio::co_spawn(io_, look_for_another_machine_0(), asio::detached);
  }
  std::optional<Round> round;
  std::exception_ptr fault;
  try {
    round = co_await join();
  } catch (...) {
    fault = std::current_exception();
  }
  is_joining_ = false;
  pause_.cancel();
  if (fault && ranks_are_given() && should_serve_ && !rendezvous_) {
    co_await ask(own_server());  // a launcher of the same job may use the port
  }
  fault = refusal_ ? refusal_ : fault;
  if (fault) {
    std::rethrow_exception(fault);
  }
  if (round && round->machine_rank == 0 && !status_port_ &&
      !plan_.settings.text("status_port"_key).empty()) {
    say_(
        "--status_port has no effect on this machine: the job can be watched at the port of the "
        "rendezvous, " +
        std::to_string(port_) + " of " + address_);
  }
  co_return round;
}

/// Joins the first round. If a machine that should serve finds another process at its port and that
/// does not answer as a rendezvous, the timeout becomes an error about the port.
asio::awaitable<std::optional<Round>> RoundsTogether::join() {
  const std::string server = ranks_are_given() && should_serve_ ? own_server() : address_;
  try {
    const auto round = co_await agent_.join(server, port_, this_machine());
    has_joined_ = true;
    co_return round;
  } catch (const Error& error) {
    if (!should_serve_ || rendezvous_ || error.code() != Errc::timeout) {
      throw;
    }
    throw Error(Errc::config,
                std::string(error.what()) + "; " +
                    Server::port_owner(plan_.rendezvous.port).value_or("another process") +
                    " listens there; choose another port");
  }
}

/// Asks the configured address every second whether another machine serves there as machine 0. Both
/// would wait for the other machines, and one of them forever. Runs only if the address is not one
/// of this machine's; it may still lead back to this machine through a gateway.
asio::awaitable<void> RoundsTogether::look_for_another_machine_0() {
  constexpr std::chrono::seconds kInterval{1};
  while (is_joining_) {
    co_await ask(address_);
    if (!is_joining_) {  // a round was formed meanwhile, with this machine as machine 0
      co_return;
    }
    if (refusal_) {
      agent_.close();
      co_return;
    }
    pause_.expires_after(kInterval);
    co_await pause_.async_wait(asio::as_tuple(asio::use_awaitable));
  }
}

/// Asks the server at `host` whether it would accept this machine. Keeps a refusal in `refusal_`.
asio::awaitable<void> RoundsTogether::ask(std::string host) {
  rendezvous::JobTimes short_times = times(plan_);
  short_times.join = std::chrono::seconds(5);
  asker_.emplace(io_.get_executor(), plan_.rendezvous.run_id, terms(plan_), short_times,
                 Agent::Events{}, security_.rendezvous_client);
  try {
    co_await asker_->ask(std::move(host), plan_.rendezvous.port, this_machine());
  } catch (const Error&) {
    refusal_ = std::current_exception();
  }
}

/// Starts an empty store for the next round, so that its workers see no keys that workers of the
/// last round set or still send.
void RoundsTogether::renew_store() {
  if (!ranks_are_given()) {
    store_.emplace(
        io_, listen(store_hosts_, 0),
        rendezvous::ServerOptions{.forms_rounds = false, .security = security_.store_server});
  } else if (rendezvous_) {
    rendezvous_->renew_store();
  }
}

/// Starts the store that the workers use if this machine becomes machine 0. `address` is the one
/// that the other machines will get. Returns the store's port. With static ranks the rendezvous
/// server is the store.
std::uint16_t RoundsTogether::serve_store_at(const std::string& address) {
  if (ranks_are_given()) {
    return plan_.rendezvous.port;
  }
  const bool is_given = address == plan_.rendezvous.local_address;
  const auto hosts = is_given              ? local_hosts_
                     : address == address_ ? server_hosts_
                                           : std::vector<std::string>{address};
  // On a further connection the store stays: a round with its port may have been formed.
  if (!store_ || hosts != store_hosts_) {
    store_hosts_ = hosts;
    renew_store();
  }
  return store_->port();
}

/// Listens on a port at all `hosts`, and warns once if that includes all interfaces.
std::vector<rendezvous::Listener> RoundsTogether::listen(const std::vector<std::string>& hosts,
                                                         std::uint16_t port) {
  std::vector<rendezvous::Listener> listeners = rendezvous::listen_on(hosts, port);
  if (!security_.rendezvous_server) {
    check_open(listeners);
  }
  return listeners;
}

/// Without a token, refuses listeners that other machines can reach, unless ranks are static or the
/// user has waived the token; then warns once.
void RoundsTogether::check_open(const std::vector<rendezvous::Listener>& listeners) {
  const auto open = std::ranges::find(listeners, true, &rendezvous::Listener::is_open);
  const bool is_waived = plan_.settings.boolean("insecure"_key);
  if (open == listeners.end()) {
    return;
  }
  if (!ranks_are_given() && !is_waived) {
    throw Error(Errc::config,
                rendezvous::warning_of_open(open->address) +
                    ". Set ACC_RENDEZVOUS_TOKEN_FILE to a file with a token on every machine, or "
                    "give --insecure");
  }
  std::string warning = warning_of_all_interfaces(listeners, address_);
  if (warning.empty() && !is_waived) {
    warning = rendezvous::warning_of_open(open->address) + "; or use --secure";
  }
  if (!warning.empty() && !std::exchange(has_warned_, true)) {
    say_(warning);
  }
}

/// If the plan names several daemons, or an etcd in which they are registered, meets at the first
/// one and tells the agent the others.
asio::awaitable<void> RoundsTogether::find_servers() {
  std::string servers = plan_.rendezvous.address;
  const bool are_in_etcd = rendezvous::is_etcd_address(servers);
  if (are_in_etcd) {
    servers = co_await servers_in_etcd();
  }
  meets_at_daemons_ = are_in_etcd || servers.find(',') != std::string::npos;
  if (!meets_at_daemons_) {
    co_return;
  }
  const auto endpoints = plan::read_endpoints({servers, plan_.rendezvous.address});
  address_ = endpoints.front().host;
  port_ = endpoints.front().port.value_or(port_);
  for (std::size_t i = 1; i < endpoints.size(); ++i) {
    agent_.add_server(endpoints[i].host, endpoints[i].port.value_or(port_));
  }
}

/// Returns the daemons that are registered in etcd, joined by commas. Waits until there is one, for
/// at most the join timeout.
asio::awaitable<std::string> RoundsTogether::servers_in_etcd() {
  constexpr std::chrono::seconds kInterval{1};
  const auto deadline = std::chrono::steady_clock::now() + plan_.rendezvous.join_timeout;
  const rendezvous::EtcdAddress etcd =
      rendezvous::parse_etcd_address(plan_.rendezvous.address, plan_.rendezvous.etcd_files);
  for (bool has_said = false; true; has_said = true) {
    std::string failure =
        "no acc-rendezvous is registered there; start one with --state " + plan_.rendezvous.address;
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
      if (error.code() == Errc::config) {
        throw;
      }
      failure = error.what();
    }
    if (!servers.empty()) {
      co_return fmt::format("{}", fmt::join(servers, ","));
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(Errc::timeout,
                  "timeout: no rendezvous found in " + plan_.rendezvous.address + ": " + failure);
    }
    if (!has_said) {
      say_("waiting for a rendezvous in " + plan_.rendezvous.address + " (" + failure + ")");
    }
    pause_.expires_after(kInterval);
    const auto [cancelled] = co_await pause_.async_wait(asio::as_tuple(asio::use_awaitable));
    if (cancelled) {
      throw Error(Errc::timeout, "the job is closed before it has found a rendezvous");
    }
  }
}

asio::awaitable<void> RoundsTogether::look_up_addresses() {
  const RendezvousPlan& plan = plan_.rendezvous;
  const auto found = co_await rendezvous::addresses_of(io_.get_executor(), address_);
  is_own_address_ = std::ranges::any_of(found.addresses, rendezvous::is_own_address);
  server_hosts_ = rendezvous::hosts_to_listen_on(address_, found);
  address_ = found.is_assumed ? found.addresses.front().to_string() : address_;
  if (!plan.local_address.empty()) {
    local_hosts_ = rendezvous::hosts_to_listen_on(
        plan.local_address,
        co_await rendezvous::addresses_of(io_.get_executor(), plan.local_address));
  }
  if (ranks_are_given() && is_to_serve() && !is_own_address_) {
    warn_of_another_machine(found);
  }
}

/// Warns on machine 0 if the configured address is not one of its own. Usually the machine rank or
/// the address is wrong; sometimes a gateway forwards the address.
void RoundsTogether::warn_of_another_machine(const rendezvous::HostAddresses& found) const {
  std::vector<std::string> addresses;
  for (const auto& address : found.addresses) {
    addresses.push_back(address.to_string());
  }
  const bool is_known = !addresses.empty();
  const rendezvous::Advice advice = is_known
                                        ? rendezvous::main_process_elsewhere(address_, addresses)
                                        : rendezvous::main_process_unknown(address_, found.failure);
  say_("warning: " + advice.what + ". " + advice.what_to_do +
       (is_known ? " Ignore this if a gateway or service forwards that address to this machine"
                 : ""));
}

/// True if this machine serves the rendezvous: machine 0 with static ranks; with c10d by is_host,
/// else if the address is one of its own.
bool RoundsTogether::is_to_serve() const {
  if (ranks_are_given()) {
    return plan_.layout.machine_rank == 0;
  }
  if (meets_at_daemons_) {
    return false;
  }
  return plan_.rendezvous.is_host.value_or(is_own_address_);
}

/// Returns the address at which this machine connects to its own server. The configured address may
/// lead elsewhere from here.
std::string RoundsTogether::own_server() const {
  return server_hosts_.front() == "*" ? "localhost" : server_hosts_.front();
}

/// Called before each connection attempt. Starts the rendezvous server if this machine should serve
/// and the port is free. With c10d the port may belong to a daemon or to another launcher on this
/// machine; if that ends and does not come back soon, this launcher takes over. True if this
/// launcher serves.
bool RoundsTogether::serves_if_nobody_does() {
  if (!should_serve_ || rendezvous_ || may_come_back()) {
    return rendezvous_.has_value();
  }
  const RendezvousPlan& plan = plan_.rendezvous;
  try {
    rendezvous_.emplace(
        io_, listen(server_hosts_, plan.port),
        rendezvous::ServerOptions{.board = board_, .security = security_.rendezvous_server});
    port_ = rendezvous_->port();
  } catch (const Error& error) {
    if (ranks_are_given() || plan.is_host || error.code() == Errc::config) {
      throw Error(Errc::config, error.what());
    }
  }
  if (rendezvous_ && !status_port_) {
    status_port_ = open_status_port(io_, plan_, say_, board_, security_.rendezvous_server);
  }
  return rendezvous_.has_value();
}

/// True while a server that is gone may still come back: until the heartbeat timeout. A daemon that
/// is restarted needs its port, which this launcher must not take.
bool RoundsTogether::may_come_back() {
  if (!has_joined_ || plan_.rendezvous.is_host) {
    return false;
  }
  const auto now = std::chrono::steady_clock::now();
  server_gone_since_ = server_gone_since_.value_or(now);
  return now < *server_gone_since_ + plan_.rendezvous.heartbeat_timeout;
}

Machine RoundsTogether::this_machine() const {
  const RendezvousPlan& plan = plan_.rendezvous;
  Machine machine{.machine_rank = std::nullopt,
                  .host = host_,
                  .address = plan.local_address,
                  .store_port = store_ ? store_->port() : plan.port,
                  .local_world_size = plan_.layout.local_world_size,
                  .pid = ::getpid(),
                  .secret = secret_,
                  .role = plan_.role};
  if (ranks_are_given() || plan.machine_rank_was_given) {
    machine.machine_rank = plan_.layout.machine_rank;
  }
  if (ranks_are_given()) {
    machine.address = address_;
  }
  return machine;
}

/// Keeps serving while another machine needs this machine's server: the job's other machines
/// receive their last answers, late machines are told that the job is over, and jobs with other run
/// ids may use the same server.
asio::awaitable<void> RoundsTogether::part() {
  co_await agent_.finish();
  if (!rendezvous_) {
    co_return;
  }
  constexpr std::chrono::seconds kLastAnswers{2};
  if (rendezvous_->is_refusing()) {
    say_("staying for up to " + std::to_string(plan_.rendezvous.close_timeout.count()) +
         " s, to inform machines that are still to come");
  }
  rendezvous::Gate unattended(io_.get_executor());
  asio::steady_timer patience(io_, kLastAnswers);
  patience.async_wait([this](const boost::system::error_code& error) {
    if (!error && !rendezvous_->is_refusing()) {
      say_("other jobs use the rendezvous on this machine: serving them until they end");
    }
  });
  rendezvous_->retire([&unattended] { unattended.open(); });
  co_await unattended.passed();
}

void RoundsTogether::close() {
  agent_.close();
  tunnel_.reset();
  is_joining_ = false;
  pause_.cancel();
  if (asker_) {
    asker_->close();
  }
  for (std::optional<Server>* server : {&store_, &rendezvous_}) {
    if (*server) {
      (*server)->stop();
    }
  }
  if (status_port_) {
    status_port_->stop();
  }
}

std::size_t RoundsTogether::num_clients(const Round& round) const {
  std::size_t count = rendezvous_ ? static_cast<std::size_t>(round.num_machines()) : 0;
  if (tunnel_) {  // two sockets for each worker of this machine
    count += 2 * static_cast<std::size_t>(plan_.layout.local_world_size);
  }
  if (round.machine_rank == 0) {
    for (const int size : round.local_world_sizes) {
      count += static_cast<std::size_t>(size);
    }
  }
  return count;
}

}  // namespace acc::launcher::job
