#pragma once

#include "acc/base/unique_fd.hpp"

#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>

namespace acc::rendezvous {

/// poll(2) that a stop request ends at once, from any thread.
class StoppablePoll {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Throws Error(connection) where `stop` can come and no descriptor is left to hear it by.
  explicit StoppablePoll(std::stop_token stop);

  /// Waits until one of `fds` is ready and fills in what for; false at the deadline. Throws
  /// Error(connection) when stop was requested, now or before.
  bool wait(std::span<pollfd> fds, TimePoint deadline) const;

  /// Throws Error(connection) when stop was requested.
  void check() const;

  [[nodiscard]] const std::stop_token& stop() const noexcept { return stop_; }

 private:
  std::stop_token stop_;
  UniqueFd stop_event_;  // readable from the request on, for good
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

}  // namespace acc::rendezvous
