// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <poll.h>

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <stop_token>

namespace acc::rendezvous {

/// poll(2) that returns at once on a stop request from any thread: it also polls an eventfd, to
/// which the stop callback writes.
class StoppablePoll {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Throws Error(connection) if a stop is possible but no descriptor is left for the eventfd.
  explicit StoppablePoll(std::stop_token stop);

  /// Waits until one of `fds` is ready, fills in their revents and returns true; returns false at
  /// the deadline. Throws Error(connection) if stop is or was requested.
  bool wait(std::span<pollfd> fds, TimePoint deadline) const;

  /// Throws Error(connection) if stop was requested.
  void check() const;

  [[nodiscard]] const std::stop_token& stop() const noexcept { return stop_; }

 private:
  std::stop_token stop_;
  UniqueFd stop_event_;  // eventfd: stays readable after the stop request
  std::optional<std::stop_callback<std::function<void()>>> on_stop_;
};

}  // namespace acc::rendezvous
