#include "job/meeting.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/attempts.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;
using rendezvous::AsyncClient;
using rendezvous::Server;

namespace {

/// How long who serves keeps the store of a job that does not come together, so that the others can
/// read there why.
constexpr std::chrono::seconds kLastWords{1};

/// A launcher on the same machine answers sooner; then it is looked whether the port is free.
constexpr std::chrono::seconds kNeighbourTimeout{10};
constexpr std::chrono::seconds kNeighbourAnswers{1};

constexpr const char* kLoopback = "127.0.0.1";

}  // namespace

Meeting::Meeting(asio::io_context& io, const LaunchPlan& plan, std::string host, Say say)
    : io_(io),
      plan_(plan),
      host_(std::move(host)),
      say_(std::move(say)),
      client_(io.get_executor()),
      machines_({this_machine()}),
      machine_rank_(plan.machine_rank),
      store_{plan.rendezvous.address, plan.rendezvous.port} {}

asio::awaitable<void> Meeting::take_place() {
  std::exception_ptr refused;
  try {
    switch (plan_.rendezvous.backend) {
      case RendezvousPlan::Backend::none: break;
      case RendezvousPlan::Backend::fixed: co_await meet_by_rank(); break;
      case RendezvousPlan::Backend::c10d: co_await meet_by_arrival(); break;
    }
  } catch (const Error&) {
    refused = std::current_exception();
  }
  if (refused) {
    co_await linger();
    std::rethrow_exception(refused);
  }
}

asio::awaitable<void> Meeting::linger() {
  if (plan_.num_machines > 1 && (store_server_ || meeting_server_)) {
    asio::steady_timer timer(io_, kLastWords);
    co_await timer.async_wait(asio::use_awaitable);
  }
}

void Meeting::serve_store() {
  // One machine's store is for its own workers; other machines may come by any interface.
  const std::string address = plan_.num_machines == 1 ? store_.host : "";
  const std::uint16_t port = store_.port;
  try {
    store_server_.emplace(io_, address, port);
  } catch (const Error& error) {
    if (plan_.rendezvous.port_was_given || plan_.num_machines > 1 || port == 0) {
      throw Error(Errc::config, error.what());
    }
    store_server_.emplace(io_, address, 0);
    say_("port " + std::to_string(port) + " is in use by " +
         Server::port_owner(port).value_or("somebody else") + "; the store takes the free port " +
         std::to_string(store_server_->port()));
  }
  store_.port = store_server_->port();
}

asio::awaitable<void> Meeting::meet_by_rank() {
  if (plan_.machine_rank == 0) {
    serve_store();
  }
  if (plan_.num_machines == 1) {
    co_return;
  }
  const std::string server = store_server_ ? "localhost" : store_.host;  // g++ 12: not below
  co_await connect(server);
  machines_ = co_await rendezvous::meet_by_rank(client_, plan_.rendezvous.run_id, this_machine(),
                                                terms(), times(), say_);
}

asio::awaitable<void> Meeting::meet_by_arrival() {
  if (plan_.num_machines == 1) {
    store_ = {kLoopback, 0};
    serve_store();
    co_return;
  }
  co_await connect_to_meeting();
  const bool serves = meeting_server_.has_value();
  rendezvous::Machine me = this_machine();
  if (!serves && plan_.rendezvous.local_address.empty()) {
    const std::string own = client_.own_address();
    me.address = own.empty() ? me.address : own;  // beside the meeting's server its name will do
  }
  rendezvous::Round round = co_await rendezvous::meet_by_arrival(
      client_, plan_.rendezvous.run_id, std::move(me), terms(), times(), say_);
  machines_ = std::move(round.machines);
  machine_rank_ = round.machine_rank;
  co_await agree_on_store();
}

asio::awaitable<void> Meeting::connect_to_meeting() {
  const auto& [address, port] = store_;
  const bool is_here = co_await is_own_address(address);
  if (!is_here) {
    co_await connect(address);
    co_return;
  }
  const auto deadline =
      std::chrono::steady_clock::now() + std::min(plan_.rendezvous.join_timeout, kNeighbourTimeout);
  std::string reason;
  while (!serve_meeting()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      throw Error(Errc::config,
                  "machines cannot meet at " + address + ":" + std::to_string(port) + ", where " +
                      Server::port_owner(port).value_or("somebody else") +
                      " listens, which is no store (" + reason + "); choose another port");
    }
    reason = co_await connect_to_neighbour();
    if (reason.empty()) {
      co_return;
    }
  }
  const std::string server = "localhost";  // g++ 12: not below
  co_await connect(server);
}

/// A name server that is gone does not keep signals waiting.
asio::awaitable<bool> Meeting::is_own_address(std::string host) {
  asio::ip::tcp::resolver resolver(io_);
  const auto [error, found] =
      co_await resolver.async_resolve(host, "", asio::as_tuple(asio::use_awaitable));
  co_return !error && std::ranges::any_of(found, [](const auto& entry) {
    return Server::is_own_address(entry.endpoint().address().to_string());
  });
}

/// The first launcher where the meeting's address is takes the port; a second one on that machine
/// is a guest like all others.
bool Meeting::serve_meeting() {
  const auto& [address, port] = store_;
  if (port == 0) {
    throw Error(Errc::config,
                "machines cannot meet at " + address + ":0; name a port that all of them know");
  }
  try {
    meeting_server_.emplace(io_, "", port);
  } catch (const Error&) {
    return false;
  }
  rendezvous::arrive_first(*meeting_server_, plan_.rendezvous.run_id, this_machine());
  return true;
}

/// Somebody on this machine has the port: another launcher, which may end at any time, or a
/// stranger. Returns why it is no use, or "".
asio::awaitable<std::string> Meeting::connect_to_neighbour() {
  try {
    co_await client_.connect(store_.host, store_.port, kNeighbourAnswers);
  } catch (const Error& error) {
    co_return error.what();
  }
  co_return "";
}

/// Apart from the meeting's: jobs that meet at one place do not see each other's keys.
asio::awaitable<void> Meeting::agree_on_store() {
  if (machine_rank_ == 0) {
    store_server_.emplace(io_, "", 0);
    store_ = {machines_.front().address, store_server_->port()};
    co_await rendezvous::publish_store(client_, plan_.rendezvous.run_id, store_);
  } else {
    store_ = co_await rendezvous::await_store(client_, plan_.rendezvous.run_id,
                                              AsyncClient::kCallTimeout);
  }
}

rendezvous::Machine Meeting::this_machine() const {
  const std::string& local = plan_.rendezvous.local_address;
  return {.machine_rank = plan_.machine_rank,
          .host = host_,
          .address = local.empty() ? plan_.rendezvous.address : local,
          .local_world_size = plan_.local_world_size,
          .pid = ::getpid(),
          .pid_space = rendezvous::own_pid_space()};
}

rendezvous::Terms Meeting::terms() const {
  const bool by_arrival = plan_.rendezvous.backend == RendezvousPlan::Backend::c10d;
  return {.num_machines = plan_.num_machines,
          .min_machines = by_arrival ? plan_.rendezvous.min_machines : plan_.num_machines,
          .num_processes = plan_.num_processes,
          .max_restarts = plan_.max_restarts};
}

rendezvous::MeetingTimes Meeting::times() const {
  const auto left = std::chrono::duration_cast<AsyncClient::Milliseconds>(
      start_ + plan_.rendezvous.join_timeout - std::chrono::steady_clock::now());
  return {.timeout = left, .last_call = plan_.rendezvous.last_call_timeout};
}

asio::awaitable<void> Meeting::connect(const std::string& server) {
  return client_.connect(server, plan_.rendezvous.port, plan_.rendezvous.join_timeout, say_);
}

asio::awaitable<bool> Meeting::leave() {
  if (plan_.num_machines == 1 || plan_.rendezvous.backend == RendezvousPlan::Backend::none) {
    co_return true;
  }
  const bool serves = store_server_ || meeting_server_;
  if (serves) {
    co_return true;  // the meeting ends with this launcher
  }
  AsyncClient client(io_.get_executor());  // the other one waits
  try {
    co_await client.connect(plan_.rendezvous.address, plan_.rendezvous.port, kLastWords);
    co_return co_await rendezvous::leave(client, plan_.rendezvous.run_id, this_machine(), terms());
  } catch (const Error&) {  // there is nobody to be told
  }
  co_return true;
}

Assignment Meeting::assignment(int restart_count) const {
  Assignment result{.machine_rank = machine_rank_,
                    .num_machines = static_cast<int>(machines_.size()),
                    .local_world_size = plan_.local_world_size,
                    .local_world_sizes = {},
                    .world_size = 0,
                    .master_addr = store_.host,
                    .master_port = store_.port,
                    .run_id = plan_.rendezvous.run_id,
                    .restart_count = restart_count};
  for (const rendezvous::Machine& machine : machines_) {
    result.first_rank += machine.machine_rank < machine_rank_ ? machine.local_world_size : 0;
    result.world_size += machine.local_world_size;
    result.local_world_sizes.push_back(machine.local_world_size);
  }
  return result;
}

void Meeting::on_machine_gone(std::function<void(int machine_rank)> callback) {
  store_server_->on_machine_gone(std::move(callback));
}

void Meeting::report_nothing(int attempt, int machine_rank) {
  rendezvous::report_nothing(*store_server_, plan_.rendezvous.run_id, attempt, machine_rank);
}

void Meeting::forget_workers() {
  store_server_->forget_workers();
}

void Meeting::close(bool gently) {
  client_.close();
  for (std::optional<Server>* server : {&store_server_, &meeting_server_}) {
    if (!gently) {
      server->reset();
    } else if (*server) {
      (*server)->stop();
    }
  }
}

}  // namespace acc::launcher
