// SPDX-License-Identifier: Apache-2.0
#include "net/stoppable_poll.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

namespace acc::rendezvous {
namespace {

using std::chrono::milliseconds;

/// Time until the deadline in poll(2)'s unit, rounded up, so that poll does not return just before
/// it. A longer time than fits an int is waited for in several steps.
int poll_timeout(StoppablePoll::TimePoint deadline) {
  const auto left =
      std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return static_cast<int>(std::clamp<decltype(left)>(left, 0, std::numeric_limits<int>::max()));
}

[[noreturn]] void failed(const char* what) {
  throw Error(Errc::connection,
              fmt::format("{}: {} (errno {})", what, std::strerror(errno), errno));
}

}  // namespace

StoppablePoll::StoppablePoll(std::stop_token stop) : stop_(std::move(stop)) {
  if (!stop_.stop_possible()) {
    return;
  }
  stop_event_.reset(eventfd(0, EFD_CLOEXEC));
  if (!stop_event_) {
    failed("eventfd");
  }
  on_stop_.emplace(stop_, [fd = stop_event_.get()] { eventfd_write(fd, 1); });
}

void StoppablePoll::check() const {
  if (stop_.stop_requested()) {
    throw Error(Errc::connection, "stopped on request");
  }
}

bool StoppablePoll::wait(std::span<pollfd> fds, TimePoint deadline) const {
  std::vector<pollfd> all(fds.begin(), fds.end());
  all.push_back({stop_event_.get(), POLLIN, 0});  // -1 if no stop is possible: poll ignores it
  while (true) {
    const int count = poll(all.data(), all.size(), poll_timeout(deadline));
    if (count < 0 && errno != EINTR) {
      failed("poll");
    }
    check();
    if (count > 0) {
      std::copy_n(all.begin(), fds.size(), fds.begin());
      return true;
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return false;
    }
  }
}

}  // namespace acc::rendezvous
