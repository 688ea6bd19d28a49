#pragma once

#include "connection.hpp"

#include <chrono>
#include <deque>
#include <optional>

namespace acc::rendezvous {

/// Connections with a time limit that is the same for all: who came first is due first.
class Deadlines {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadlines(std::chrono::milliseconds limit) : limit_(limit) {}

  void add(Connection::Id id) { limits_.push_back({Clock::now() + limit_, id}); }
  /// Clock's end of time: never.
  [[nodiscard]] Clock::time_point next() const {
    return limits_.empty() ? Clock::time_point::max() : limits_.front().at;
  }
  /// One that is due, until there are no more.
  std::optional<Connection::Id> take(Clock::time_point now) {
    if (next() > now) {
      return std::nullopt;
    }
    const Connection::Id id = limits_.front().id;
    limits_.pop_front();
    return id;
  }

 private:
  struct Limit {
    Clock::time_point at;
    Connection::Id id;
  };
  std::chrono::milliseconds limit_;
  std::deque<Limit> limits_;
};

}  // namespace acc::rendezvous
