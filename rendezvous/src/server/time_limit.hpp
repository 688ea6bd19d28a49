// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/turns.hpp"

#include <chrono>
#include <deque>
#include <functional>
#include <utility>

namespace acc::rendezvous {

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
