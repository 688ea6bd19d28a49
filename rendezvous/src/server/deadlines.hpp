#pragma once

#include "server/connection.hpp"

#include <chrono>
#include <deque>
#include <optional>

namespace acc::rendezvous {

/// Queue of connections with one common time limit: the first that was added is due first, so no
/// sorting is needed. An entry stays until it is due, even if the connection has closed before.
class Deadlines {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadlines(std::chrono::milliseconds limit) : limit_(limit) {}

  void add(Connection::Id id) { limits_.push_back({Clock::now() + limit_, id}); }
  /// Time at which the first entry is due; time_point::max() if there is none.
  [[nodiscard]] Clock::time_point next() const {
    return limits_.empty() ? Clock::time_point::max() : limits_.front().at;
  }
  /// Removes and returns an entry that is due at `now`; nothing if there is none.
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
