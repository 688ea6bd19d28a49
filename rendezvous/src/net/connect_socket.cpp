#include "net/connect_socket.hpp"

#include "acc/base/error.hpp"
#include "net/tune_socket.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace acc::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

// Delay before the next address is tried: the value that RFC 8305, section 5, recommends.
constexpr std::chrono::milliseconds kHeadStart{250};

/// Concurrent attempts to connect to several addresses.
class Race {
 public:
  Race(std::span<const SocketAddress> addresses, const StoppablePoll& poll)
      : untried_(addresses), poll_(poll) {}

  UniqueFd run(Clock::time_point deadline) {
    while (true) {
      if (!untried_.empty() && Clock::now() >= next_start_) {
        start();
      }
      if (running_.empty() && untried_.empty()) {
        throw Error(Errc::connection, fmt::format("{} (errno {})", std::strerror(error_), error_));
      }
      if (UniqueFd winner = await(std::min(deadline, next_event()))) {
        tune_socket(winner.get());
        return winner;
      }
      if (Clock::now() >= deadline) {
        throw Error(Errc::timeout, "timeout: no answer");
      }
    }
  }

 private:
  /// Time at which the next address must be started, if there is one.
  [[nodiscard]] Clock::time_point next_event() const {
    return untried_.empty() ? Clock::time_point::max() : next_start_;
  }

  /// Starts the next address. One that fails at once (no route, no IPv6) does not delay the one
  /// after it, because next_start_ stays in the past.
  void start() {
    const SocketAddress& address = untried_.front();
    untried_ = untried_.subspan(1);
    UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd || (connect(fd.get(), address.get(), address.size) != 0 && errno != EINPROGRESS)) {
      error_ = errno;
      return;
    }
    running_.push_back(std::move(fd));
    next_start_ = Clock::now() + kHeadStart;
  }

  /// Waits until `until` and returns a connected socket, or nothing. A failed attempt lets the next
  /// address start at once.
  UniqueFd await(Clock::time_point until) {
    std::vector<pollfd> fds;
    for (const UniqueFd& each : running_) {
      fds.push_back({each.get(), POLLOUT, 0});
    }
    poll_.wait(fds, until);
    for (std::size_t i = fds.size(); i-- > 0;) {
      if (fds[i].revents == 0) {
        continue;
      }
      UniqueFd fd = std::move(running_[i]);
      running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
      // The result of a non-blocking connect(2).
      int error = 0;
      socklen_t size = sizeof error;
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) {
        return fd;
      }
      error_ = error;
      next_start_ = Clock::now();
    }
    return {};
  }

  std::span<const SocketAddress> untried_;
  const StoppablePoll& poll_;
  std::vector<UniqueFd> running_;                // attempts in progress
  Clock::time_point next_start_ = Clock::now();  // when the next address may start
  int error_ = EHOSTUNREACH;                     // errno of the last failed attempt
};

}  // namespace

UniqueFd connect_socket(std::span<const SocketAddress> addresses, StoppablePoll::TimePoint deadline,
                        const StoppablePoll& poll) {
  return Race(addresses, poll).run(deadline);
}

}  // namespace acc::rendezvous
