#include "job/peers.hpp"

#include "acc/base/error.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <unistd.h>

#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;
using rendezvous::JobEnd;

namespace {

/// A machine may take its whole shutdown timeout; this much more for the messages.
constexpr std::chrono::seconds kGrace{5};

/// How long machine 0 keeps the store of a job that does not come together, so that the others can
/// read there why.
constexpr std::chrono::seconds kLastWords{1};

}  // namespace

Peers::Peers(asio::any_io_executor executor, const LaunchPlan& plan, std::string host, Say say)
    : executor_(std::move(executor)),
      plan_(plan),
      host_(std::move(host)),
      say_(std::move(say)),
      calls_(executor_),
      watcher_(executor_),
      announced_(executor_) {}

asio::awaitable<void> Peers::join() {
  const std::string server = plan_.machine_rank == 0 ? "localhost" : plan_.rendezvous.address;
  const auto deadline = std::chrono::steady_clock::now() + plan_.rendezvous.join_timeout;
  co_await calls_.connect(server, plan_.rendezvous.port, plan_.rendezvous.join_timeout, say_);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  const rendezvous::Machine me{plan_.machine_rank, host_, host_, plan_.local_world_size,
                               ::getpid()};
  std::exception_ptr refused;
  try {
    machines_ = co_await rendezvous::join(calls_, plan_.rendezvous.run_id, me, plan_.num_machines,
                                          plan_.num_processes, left, say_);
  } catch (const Error&) {
    refused = std::current_exception();
  }
  if (refused) {
    co_await linger();
    std::rethrow_exception(refused);
  }
  co_await watcher_.connect(server, plan_.rendezvous.port, rendezvous::AsyncClient::kCallTimeout);
}

asio::awaitable<void> Peers::linger() {
  if (plan_.machine_rank == 0) {
    asio::steady_timer timer(executor_, kLastWords);
    co_await timer.async_wait(asio::use_awaitable);
  }
}

void Peers::watch(std::function<void(const JobEnd&)> on_end) {
  asio::co_spawn(executor_, await_end(std::move(on_end)), asio::detached);
}

asio::awaitable<void> Peers::await_end(std::function<void(const JobEnd&)> on_end) {
  try {
    end_ = co_await rendezvous::await_end(watcher_, plan_.rendezvous.run_id);
  } catch (const Error& error) {
    if (finishing_ || end_) {
      co_return;  // finish() notices by itself, or the store has gone after its work was done
    }
    end_ = lost_machine_0(error.what());
  }
  on_end(*end_);
}

JobEnd Peers::lost_machine_0(const std::string& why) const {
  return {0, 1, "the connection to " + name_of(0) + " is lost: " + why};
}

void Peers::announce(int exit_status, const std::string& reason) {
  if (!std::exchange(announcing_, true)) {
    asio::co_spawn(executor_, send_end({plan_.machine_rank, exit_status, reason}), asio::detached);
  }
}

asio::awaitable<void> Peers::send_end(JobEnd end) {
  try {
    end_ = co_await rendezvous::announce_end(calls_, plan_.rendezvous.run_id, end);
  } catch (const Error&) {
    end_ = std::move(end);  // nobody can be told; await_end sees the reason
  }
  announced_.open();
}

asio::awaitable<std::optional<JobEnd>> Peers::finish() {
  finishing_ = true;
  if (announcing_) {
    co_await announced_.passed();
  }
  std::optional<rendezvous::AsyncClient::Milliseconds> timeout;
  if (end_) {  // machine 0 keeps the store for the others' last words
    timeout = plan_.machine_rank == 0 ? plan_.shutdown_timeout + kGrace : std::chrono::seconds(0);
  }
  try {
    co_await rendezvous::finish(calls_, plan_.rendezvous.run_id, plan_.num_machines, timeout);
  } catch (const Error& error) {
    if (!end_) {
      end_ = lost_machine_0(error.what());
    }
  }
  watcher_.close();
  co_return end_;
}

std::string Peers::name_of(int machine_rank) const {
  const std::string name = "machine " + std::to_string(machine_rank);
  const auto index = static_cast<std::size_t>(machine_rank);
  return index < machines_.size() ? name + " (" + machines_[index].host + ")" : name;
}

}  // namespace acc::launcher
