#include "job/rounds_together.hpp"

#include "acc/base/error.hpp"
#include "acc/base/token.hpp"
#include "acc/rendezvous/main_process.hpp"
#include "plan/agreed_terms.hpp"
#include "supervision/supervisor.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;
using rendezvous::Agent;
using rendezvous::Machine;
using rendezvous::Round;
using rendezvous::Server;

namespace {

/// What a machine may need to end its workers for good: from SIGTERM to SIGKILL, then for that to
/// work, on the workers and on what they leave; and some more for the messages.
std::chrono::milliseconds time_to_settle(const LaunchPlan& plan) {
  constexpr std::chrono::seconds kGrace{5};
  return plan.shutdown_timeout +
         2 * std::max<std::chrono::milliseconds>(plan.shutdown_timeout, Supervisor::kTimeToDie) +
         kGrace;
}

rendezvous::Terms terms(const LaunchPlan& plan) {
  const bool by_rank = plan.rendezvous.backend == RendezvousPlan::Backend::fixed;
  return {.ranks_are_given = by_rank,
          .num_machines = plan.num_machines,
          .min_machines = by_rank ? plan.num_machines : plan.rendezvous.min_machines,
          .num_processes = plan.num_processes,
          .max_restarts = plan.max_restarts,
          .agreed = agreed_terms(plan)};
}

rendezvous::JobTimes times(const LaunchPlan& plan) {
  return {.join = plan.rendezvous.join_timeout,
          .last_call = plan.rendezvous.last_call_timeout,
          .heartbeat = plan.rendezvous.heartbeat_timeout,
          .settle = time_to_settle(plan),
          .close = plan.rendezvous.close_timeout};
}

}  // namespace

RoundsTogether::RoundsTogether(asio::io_context& io, const LaunchPlan& plan, std::string host,
                               Events events)
    : io_(io),
      plan_(plan),
      host_(std::move(host)),
      secret_(random_token()),
      agent_(io.get_executor(), plan.rendezvous.run_id, terms(plan), times(plan),
             {.on_end = std::move(events.on_end),
              .on_insist = std::move(events.on_insist),
              .on_progress = events.say,
              .before_connecting = [this] { return serves_if_nobody_does(); },
              .before_entering =
                  [this](const std::string& address) { return serve_store_at(address); }}),
      say_(std::move(events.say)),
      address_(plan.rendezvous.address),
      pause_(io) {}

bool RoundsTogether::ranks_are_given() const {
  return plan_.rendezvous.backend == RendezvousPlan::Backend::fixed;
}

asio::awaitable<std::optional<Round>> RoundsTogether::next() {
  if (has_joined_) {
    server_gone_since_.reset();
    renew_store();
    co_return co_await agent_.rejoin(store_ ? store_->port() : plan_.rendezvous.port);
  }
  co_await look_up_addresses();
  should_serve_ = is_to_serve();
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
    co_await ask(own_server());  // who has the port may be of this job
  }
  fault = refusal_ ? refusal_ : fault;
  if (fault) {
    std::rethrow_exception(fault);
  }
  co_return round;
}

asio::awaitable<std::optional<Round>> RoundsTogether::join() {
  const std::string server = ranks_are_given() && should_serve_ ? own_server() : address_;
  try {
    const auto round = co_await agent_.join(server, plan_.rendezvous.port, this_machine());
    has_joined_ = true;
    co_return round;
  } catch (const Error& error) {
    if (!should_serve_ || rendezvous_ || error.code() != Errc::timeout) {
      throw;
    }
    throw Error(Errc::config, std::string(error.what()) + "; " +
                                  Server::port_owner(plan_.rendezvous.port).value_or("somebody") +
                                  " listens there; choose another port");
  }
}

/// Where the address is another machine's, that one may believe to be machine 0 as well: both would
/// wait for the others, and one in vain. It may also lead back to here, through a gateway.
asio::awaitable<void> RoundsTogether::look_for_another_machine_0() {
  constexpr std::chrono::seconds kInterval{1};
  while (is_joining_) {
    co_await ask(address_);
    if (!is_joining_) {  // meanwhile there is a round, whose machine 0 this is
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

asio::awaitable<void> RoundsTogether::ask(std::string host) {
  rendezvous::JobTimes short_times = times(plan_);
  short_times.join = std::chrono::seconds(5);
  asker_.emplace(io_.get_executor(), plan_.rendezvous.run_id, terms(plan_), short_times,
                 Agent::Events{});
  try {
    co_await asker_->ask(std::move(host), plan_.rendezvous.port, this_machine());
  } catch (const Error&) {
    refusal_ = std::current_exception();
  }
}

/// Nothing that a worker of the last round left, or still sends, is seen by the next one's.
void RoundsTogether::renew_store() {
  if (!ranks_are_given()) {
    store_.emplace(io_, listen(store_hosts_, 0), rendezvous::ServerOptions{.forms_rounds = false});
  } else if (rendezvous_) {
    rendezvous_->renew_store();
  }
}

/// c10d: the store that is ready in case that this becomes machine 0, at the address that the
/// others are told next.
std::uint16_t RoundsTogether::serve_store_at(const std::string& address) {
  if (ranks_are_given()) {
    return plan_.rendezvous.port;
  }
  const bool is_given = address == plan_.rendezvous.local_address;
  store_hosts_ = is_given              ? local_hosts_
                 : address == address_ ? server_hosts_
                                       : std::vector<std::string>{address};
  renew_store();
  return store_->port();
}

std::vector<rendezvous::Listener> RoundsTogether::listen(const std::vector<std::string>& hosts,
                                                         std::uint16_t port) {
  std::vector<rendezvous::Listener> listeners = rendezvous::listen_on(hosts, port);
  const std::string warning = warning_of_all_interfaces(listeners, address_);
  if (!warning.empty() && !std::exchange(has_warned_, true)) {
    say_(warning);
  }
  return listeners;
}

asio::awaitable<void> RoundsTogether::look_up_addresses() {
  const RendezvousPlan& plan = plan_.rendezvous;
  const auto found = co_await rendezvous::addresses_of(io_.get_executor(), plan.address);
  is_own_address_ = std::ranges::any_of(found.addresses, rendezvous::is_own_address);
  server_hosts_ = rendezvous::hosts_to_listen_on(plan.address, found);
  address_ = found.is_assumed ? found.addresses.front().to_string() : plan.address;
  if (!plan.local_address.empty()) {
    local_hosts_ = rendezvous::hosts_to_listen_on(
        plan.local_address,
        co_await rendezvous::addresses_of(io_.get_executor(), plan.local_address));
  }
  if (ranks_are_given() && is_to_serve() && !is_own_address_) {
    warn_of_another_machine(found);
  }
}

/// Machine 0 whose address is not its own: mostly the wrong machine rank or address, sometimes a
/// gateway.
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
       (is_known ? " Nothing is wrong where a gateway or a service leads from there to here" : ""));
}

bool RoundsTogether::is_to_serve() const {
  if (ranks_are_given()) {
    return plan_.machine_rank == 0;
  }
  return plan_.rendezvous.is_host.value_or(is_own_address_);
}

/// Where this machine finds the server that it is itself: from inside, the address may lead
/// somewhere else.
std::string RoundsTogether::own_server() const {
  return server_hosts_.front() == "*" ? "localhost" : server_hosts_.front();
}

/// c10d: a daemon may have the port, or another launcher of this machine; when that ends, and is
/// not soon back, this one takes over.
bool RoundsTogether::serves_if_nobody_does() {
  if (!should_serve_ || rendezvous_ || may_come_back()) {
    return rendezvous_.has_value();
  }
  const RendezvousPlan& plan = plan_.rendezvous;
  if (plan.port == 0) {
    throw Error(Errc::config, "machines cannot meet at " + plan.address +
                                  ":0; name a port that all of them know");
  }
  try {
    rendezvous_.emplace(io_, listen(server_hosts_, plan.port));
  } catch (const Error& error) {
    if (ranks_are_given() || plan.is_host) {
      throw Error(Errc::config, error.what());
    }
  }
  return rendezvous_.has_value();
}

/// Asked before each attempt to connect. A daemon that is restarted needs its port.
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
                  .local_world_size = plan_.local_world_size,
                  .pid = ::getpid(),
                  .secret = secret_};
  if (ranks_are_given() || plan.machine_rank_was_given) {
    machine.machine_rank = plan_.machine_rank;
  }
  if (ranks_are_given()) {
    machine.address = address_;
  }
  return machine;
}

/// Jobs of other run ids may meet here; and this one's other machines take their last answers.
asio::awaitable<void> RoundsTogether::part() {
  agent_.close();
  if (!rendezvous_) {
    co_return;
  }
  constexpr std::chrono::seconds kLastAnswers{2};
  if (rendezvous_->is_refusing()) {
    say_("staying for up to " + std::to_string(plan_.rendezvous.close_timeout.count()) +
         " s, to tell it to the machines that are still to come");
  }
  rendezvous::Gate unattended(io_.get_executor());
  asio::steady_timer patience(io_, kLastAnswers);
  patience.async_wait([this](const boost::system::error_code& error) {
    if (!error && !rendezvous_->is_refusing()) {
      say_("other machines meet here: serving them until their jobs end");
    }
  });
  rendezvous_->retire([&unattended] { unattended.open(); });
  co_await unattended.passed();
}

void RoundsTogether::close() {
  agent_.close();
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
}

std::size_t RoundsTogether::num_clients(const Round& round) const {
  std::size_t count = rendezvous_ ? static_cast<std::size_t>(round.num_machines()) : 0;
  if (round.machine_rank == 0) {
    for (const int size : round.local_world_sizes) {
      count += static_cast<std::size_t>(size);
    }
  }
  return count;
}

}  // namespace acc::launcher
