// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/connection.hpp"
#include "server/ready_set.hpp"

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace acc::rendezvous {

/// Divides the time of the server's thread among its clients. Owns the epoll set, and the queues of
/// connections that have something to do.
///
/// The unit of work is a *turn*: the epoll set is ready, or a timer expires, or a function of
/// Server is called. A turn reads one buffer from each ready client, serves the requests in it and
/// sends the replies. No client holds up the others: a connection serves requests of a limited cost
/// per turn (Connection::kTurnCost), and the others wait in a queue (resume_later). No client holds
/// up the heartbeats: whenever that cost has been spent, by any connections, the agents that have
/// sent something are served, and what is sent to agents goes first. These rules keep calls into
/// the table and the jobs from being nested:
/// - Bytes for other connections (a released waiter, messages to agents) are queued by
///   Connection::send, and sent after the current event (flush_later).
/// - A connection that is closed in a turn is destroyed at its end (destroy_later), because later
///   events of the same batch may still point to it.
/// - Every entry point from outside (handler, timer, public function) ends with `end`.
/// - With a log, the changes of a batch of clients are one group, which another thread writes. The
///   connections whose unsent bytes show one of them are held until then (hold).
class Turns {
 public:
  using Clock = std::chrono::steady_clock;
  using Connections = std::unordered_map<Connection::Id, std::unique_ptr<Connection>>;
  /// Cost of sending to one client (Connection::kTurnCost).
  static constexpr std::size_t kFlushCost = 32;

  struct Calls {
    /// Writes the changes of this turn to the log. Returns true if changes have reached it since
    /// the last call.
    std::function<bool()> commit;
    /// Called at the end of each turn. May destroy the server.
    std::function<void()> ended;
  };

  /// A timer of the server, each expiry of which is a turn.
  class Timer {
   public:
    Timer(Turns& turns, std::function<void()> due);
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

    /// Calls `due` once at that time, and not at the time that was set before. time_point::max():
    /// never.
    void at(Clock::time_point time);
    void after(Clock::duration time) { at(Clock::now() + time); }
    void cancel() { at(Clock::time_point::max()); }
    [[nodiscard]] bool is_set() const { return timer_.expiry() != Clock::time_point::max(); }

   private:
    Turns& turns_;
    std::function<void()> due_;
    boost::asio::steady_timer timer_;
    std::uint64_t num_settings_ = 0;  // a handler that was queued before the last one does nothing
  };

  /// `open`: the open connections, which must outlive it.
  Turns(boost::asio::io_context& io, const Connections& open, Calls calls)
      : io_(io), ready_(io), open_(open), calls_(std::move(calls)) {}

  /// Begins to serve. Handlers that wait keep `server` alive.
  void start(std::weak_ptr<void> server);
  /// Ends all waiting, so that the event loop has no more work of this server.
  void close();
  /// Makes a turn in the event loop, if the server exists then. May be called by any thread.
  template <typename Call>
  void post(Call call) {
    boost::asio::post(io_, [this, weak = server_, call = std::move(call)] {
      if (const auto server = weak.lock()) {
        call();
        end();
      }
    });
  }

  [[nodiscard]] ReadySet& ready() noexcept { return ready_; }
  /// Calls Connection::flush before the turn ends.
  void flush_later(Connection& connection);
  /// Calls Connection::resume when the other clients have been served.
  void resume_later(Connection::Id id) { unfinished_.push_back(id); }
  /// Calls Connection::flush_held when changes have reached the log.
  void hold(Connection::Id id) { held_.push_back(id); }
  /// Takes a closed connection.
  void destroy_later(std::unique_ptr<Connection> closed) { closed_.push_back(std::move(closed)); }

  /// Counts a cost (Connection::kTurnCost).
  void count(std::size_t cost) noexcept { cost_ += cost; }
  /// The same, and serves the agents when it is time. Must not be called inside of a call into the
  /// table or the jobs.
  void spend(std::size_t cost);
  /// Reads once from every client that has sent something by now.
  void read_all();
  /// Ends a turn: sends what is queued, writes the log, and destroys closed connections. May
  /// destroy the server.
  void end();

 private:
  void await_ready();
  void serve();
  std::size_t serve_batch();
  void serve_agents();
  void flush();
  void flush_agents();
  void commit();

  boost::asio::io_context& io_;
  ReadySet ready_;
  const Connections& open_;
  Calls calls_;
  std::weak_ptr<void> server_;
  std::vector<Timer*> timers_;
  std::vector<Connection*> to_flush_;         // in this turn
  std::vector<Connection*> agents_to_flush_;  // the same, before the others
  std::deque<Connection::Id> unfinished_;     // have requests that wait for their connection's turn
  std::vector<Connection::Id> held_;          // wait until their changes are in the log
  std::vector<std::unique_ptr<Connection>> closed_;  // in this turn
  std::size_t cost_ = 0;                             // since the agents were served
};

/// One time limit of many connections. Owns the queue of those that it applies to: the first that
/// was added is due first, so no sorting is needed. An entry stays until it is due, even if the
/// connection has closed before.
class TimeLimit {
 public:
  /// Calls `due` for each connection at the end of its time.
  TimeLimit(Turns& turns, std::chrono::milliseconds limit, std::function<void(Connection::Id)> due)
      : limit_(limit), due_(std::move(due)), timer_(turns, [this] { enforce(); }) {}

  /// Changes the limit of connections that are added later.
  void change(std::chrono::milliseconds limit) noexcept { limit_ = limit; }
  void add(Connection::Id id) {
    queue_.push_back({Turns::Clock::now() + limit_, id});
    timer_.at(queue_.front().at);
  }

 private:
  struct Entry {
    Turns::Clock::time_point at;
    Connection::Id id;
  };

  void enforce() {
    const auto now = Turns::Clock::now();
    while (!queue_.empty() && queue_.front().at <= now) {
      const Connection::Id id = queue_.front().id;
      queue_.pop_front();
      due_(id);
    }
    timer_.at(queue_.empty() ? Turns::Clock::time_point::max() : queue_.front().at);
  }

  std::chrono::milliseconds limit_;
  std::function<void(Connection::Id)> due_;
  std::deque<Entry> queue_;
  Turns::Timer timer_;
};

}  // namespace acc::rendezvous
