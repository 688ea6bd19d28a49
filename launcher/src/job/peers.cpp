#include "job/peers.hpp"

#include "acc/base/error.hpp"
#include "supervision/supervisor.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <algorithm>
#include <utility>

namespace acc::launcher {
namespace asio = boost::asio;
using rendezvous::AsyncClient;
using rendezvous::AttemptEnd;

namespace {

/// A machine may take its whole shutdown timeout; this much more for the messages.
constexpr std::chrono::seconds kGrace{5};

}  // namespace

Peers::Peers(asio::any_io_executor executor, const LaunchPlan& plan, Meeting& meeting)
    : executor_(std::move(executor)),
      plan_(plan),
      meeting_(meeting),
      calls_(executor_),
      watcher_(executor_),
      waiter_(executor_),
      arrivals_(executor_),
      machines_left_(num_machines() - 1),
      all_left_(executor_),
      patience_(executor_),
      announced_(executor_),
      calls_are_free_(executor_) {
  announced_.open();
  calls_are_free_.open();
}

asio::awaitable<void> Peers::connect() {
  const std::string host = is_machine_0() ? "localhost" : meeting_.store().host;
  for (AsyncClient* client : {&calls_, &watcher_, &waiter_}) {
    co_await client->connect(host, meeting_.store().port, AsyncClient::kCallTimeout);
  }
  // The store keeps the connections of those who have named a launchers' key.
  co_await rendezvous::open_attempt(calls_, run_id(), 0);
  if (!is_machine_0()) {
    co_await rendezvous::tie(watcher_, run_id(), meeting_.machine_rank());
  }
}

void Peers::watch(std::function<void(const AttemptEnd&)> on_end, std::function<void()> on_insist) {
  on_end_ = std::move(on_end);
  on_insist_ = std::move(on_insist);
  asio::co_spawn(executor_, await_ends(), asio::detached);
  if (is_machine_0()) {
    asio::co_spawn(executor_, await_machines(), asio::detached);
  }
}

/// Machine 0: one that has met may be gone before it comes to the store.
asio::awaitable<void> Peers::await_machines() {
  meeting_.on_machine_gone([this](int machine_rank) { on_machine_gone(machine_rank); });
  std::vector<int> missing;
  try {
    co_await arrivals_.connect("localhost", meeting_.store().port, AsyncClient::kCallTimeout);
    missing = co_await rendezvous::await_ties(arrivals_, run_id(), num_machines(),
                                              AsyncClient::kCallTimeout);
  } catch (const Error&) {  // closed: the job is over
  }
  for (const int machine_rank : missing) {
    on_machine_gone(machine_rank);
  }
}

void Peers::on_machine_gone(int machine_rank) {
  if (!finishing_ && !end_) {
    say_later(lost(machine_rank, "it has gone without a word"));
  }
  gone_.insert(machine_rank);
  meeting_.report_nothing(attempt_, machine_rank);
  if (--machines_left_ == 0) {
    all_left_.open();
  }
}

asio::awaitable<void> Peers::await_ends() {
  while (!end_) {
    AttemptEnd end;
    try {
      end = co_await rendezvous::await_end(watcher_, run_id(), watched_attempt_);
    } catch (const Error& error) {
      if (finishing_ || end_) {
        co_return;  // finish() notices by itself, or the store has gone after its work was done
      }
      end = lost(0, error.what());
    }
    const int attempt = watched_attempt_++;
    if (end.restarts && attempt < attempt_) {
      continue;  // waiter_ knew it sooner, and all have started again
    }
    learn(attempt);
    lose_patience_later(end.restarts);
    if (!end.restarts) {
      set_end(end);
    }
    on_end_(end);
  }
  co_await await_insistence();
}

asio::awaitable<void> Peers::await_insistence() {
  try {
    co_await rendezvous::await_insistence(watcher_, run_id());
  } catch (const Error&) {
    co_return;  // the job is over, or the store is gone
  }
  on_insist_();
}

void Peers::set_end(AttemptEnd end) {
  end_ = std::move(end);
  if (opening_) {
    waiter_.close();
  }
}

AttemptEnd Peers::lost(int machine_rank, const std::string& why) const {
  return {machine_rank, 1, false, AttemptEnd::Cause::other,
          "the connection to " + name_of(machine_rank) + " is lost: " + why};
}

void Peers::learn(int attempt) {
  learned_at_.try_emplace(attempt, std::chrono::steady_clock::now());
}

std::chrono::steady_clock::time_point Peers::learned_at(int attempt) const {
  const auto found = learned_at_.find(attempt);
  return found == learned_at_.end() ? std::chrono::steady_clock::now() : found->second;
}

/// After the end of an attempt a machine may vanish without a word.
void Peers::lose_patience_later(bool restarts) {
  // From SIGTERM to SIGKILL, then for that to work, on the workers and on what they leave.
  patience_.expires_after(
      plan_.shutdown_timeout +
      2 * std::max<std::chrono::milliseconds>(plan_.shutdown_timeout, Supervisor::kTimeToDie) +
      kGrace);
  patience_.async_wait([this, restarts](const boost::system::error_code& error) {
    if (error) {
      return;
    }
    if (restarts) {
      announce(AttemptEnd::Cause::other, 1,
               "the workers of some machine did not end for the restart");
    }
    waiter_.close();
  });
}

void Peers::announce(AttemptEnd::Cause cause, int exit_status, const std::string& reason,
                     bool restarts) {
  say_later(AttemptEnd{meeting_.machine_rank(), exit_status, restarts, cause, reason});
}

void Peers::say_later(std::optional<AttemptEnd> announcement) {
  announcements_.push_back(std::move(announcement));
  if (announcements_.size() == 1) {
    announced_.close();
    asio::co_spawn(executor_, send_announcements(), asio::detached);
  }
}

asio::awaitable<void> Peers::send_announcements() {
  co_await calls_are_free_.passed();
  while (!announcements_.empty()) {
    if (announcements_.front()) {
      co_await send(*announcements_.front());
    } else {
      try {
        co_await rendezvous::insist(calls_, run_id());
      } catch (const Error&) {  // nobody can be told; await_ends sees the reason
      }
    }
    announcements_.pop_front();
  }
  announced_.open();
}

asio::awaitable<void> Peers::send(AttemptEnd mine) {
  AttemptEnd counts = mine;
  try {
    counts = co_await rendezvous::announce_end(calls_, run_id(), attempt_, mine);
  } catch (const Error&) {  // likewise
  }
  learn(attempt_);
  if (!counts.restarts) {
    set_end(counts);
  }
}

asio::awaitable<rendezvous::Settlement> Peers::settle(std::string report) {
  for (const int machine_rank : gone_) {  // while this attempt was opened
    meeting_.report_nothing(attempt_, machine_rank);
  }
  co_await announced_.passed();
  rendezvous::Settlement settlement;
  std::string unsettled;
  try {
    settlement = co_await rendezvous::settle(waiter_, run_id(), attempt_, meeting_.machine_rank(),
                                             num_machines(), report);
  } catch (const Error& error) {
    unsettled = error.what();
  }
  if (!unsettled.empty()) {
    settlement = co_await without_the_slow(std::move(report), unsettled);
  }
  patience_.cancel();
  co_return settlement;
}

/// Some machine was too slow for somebody's patience, or the store is gone.
asio::awaitable<rendezvous::Settlement> Peers::without_the_slow(std::string report,
                                                                std::string why) {
  co_await announced_.passed();
  calls_are_free_.close();
  rendezvous::Settlement settlement;
  try {
    settlement = co_await rendezvous::settled_so_far(calls_, run_id(), attempt_, num_machines());
  } catch (const Error&) {
    settlement.reports.resize(static_cast<std::size_t>(num_machines()));
  }
  calls_are_free_.open();
  settlement.reports[static_cast<std::size_t>(meeting_.machine_rank())] = std::move(report);
  if (!end_) {
    end_ = lost(0, why);
  }
  co_return settlement;
}

asio::awaitable<bool> Peers::restart() {
  if (end_) {
    co_return false;
  }
  opening_ = true;
  try {
    co_await open_next_attempt();
  } catch (const Error& error) {
    if (!end_) {
      end_ = lost(0, error.what());
    }
  }
  opening_ = false;
  co_return !end_;
}

asio::awaitable<void> Peers::open_next_attempt() {
  const int next = attempt_ + 1;
  if (is_machine_0()) {
    meeting_.forget_workers();
    co_await rendezvous::open_attempt(waiter_, run_id(), next);
  } else {
    co_await rendezvous::await_attempt(waiter_, run_id(), next);
  }
  attempt_ = next;
  patience_.cancel();  // await_ends may have been slower than the settlement
}

asio::awaitable<std::optional<AttemptEnd>> Peers::finish() {
  finishing_ = true;
  co_await announced_.passed();
  if (is_machine_0()) {  // a launcher that cannot go on has reported nothing; the others wait
    meeting_.report_nothing(attempt_, meeting_.machine_rank());
  }
  // After a success all workers everywhere have ended, so that only this message is awaited.
  AsyncClient::Milliseconds timeout = AsyncClient::kCallTimeout;
  if (end_ || is_machine_0()) {
    timeout = std::chrono::seconds(0);
  }
  try {
    co_await rendezvous::finish(calls_, run_id(), num_machines(), timeout);
  } catch (const Error& error) {
    if (!end_) {
      end_ = lost(0, error.what());
    }
  }
  if (is_machine_0()) {
    co_await await_departures();
  }
  patience_.cancel();
  for (AsyncClient* client : {&watcher_, &waiter_, &arrivals_}) {
    client->close();
  }
  co_return end_;
}

/// Machine 0 keeps the store for the others' last words.
asio::awaitable<void> Peers::await_departures() {
  patience_.expires_after(plan_.shutdown_timeout + kGrace);
  patience_.async_wait([this](const boost::system::error_code& error) {
    if (!error) {
      all_left_.open();
    }
  });
  co_await all_left_.passed();
}

std::string Peers::name_of(int machine_rank) const {
  const std::string name = "machine " + std::to_string(machine_rank);
  const auto index = static_cast<std::size_t>(machine_rank);
  return index < meeting_.machines().size() ? name + " (" + meeting_.machines()[index].host + ")"
                                            : name;
}

}  // namespace acc::launcher
