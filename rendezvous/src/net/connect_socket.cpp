// SPDX-License-Identifier: Apache-2.0
#include "net/connect_socket.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/unix_address.hpp"
#include "net/tune_socket.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace acc::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

// Delay before the next address is tried: the value that RFC 8305, section 5, recommends.
constexpr std::chrono::milliseconds kHeadStart{250};

/// Result of getaddrinfo; `error` is an EAI code, or 0.
struct Answer {
  std::vector<SocketAddress> addresses;
  int error = 0;
};

/// A look-up in progress. Shared by the thread that performs it and the one that waits, either of
/// which may finish first.
struct Lookup {
  std::mutex mutex;
  std::condition_variable_any finished;
  bool is_finished = false;
  Answer answer;
};

/// Converts an IPv4-mapped IPv6 address to IPv4, which also works on machines without IPv6.
void unmap(SocketAddress& address) {
  if (address.family() != AF_INET6) {
    return;
  }
  sockaddr_in6 mapped{};
  std::memcpy(&mapped, &address.bytes, sizeof mapped);
  if (!IN6_IS_ADDR_V4MAPPED(&mapped.sin6_addr)) {
    return;
  }
  sockaddr_in plain{};
  plain.sin_family = AF_INET;
  plain.sin_port = mapped.sin6_port;
  std::memcpy(&plain.sin_addr, mapped.sin6_addr.s6_addr + 12, sizeof plain.sin_addr);
  address = {};
  address.size = sizeof plain;
  std::memcpy(&address.bytes, &plain, sizeof plain);
}

Answer look_up(const std::string& host, const std::string& port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  Answer answer;
  answer.error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (answer.error != 0) {
    return answer;
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  for (; found != nullptr; found = found->ai_next) {
    SocketAddress& address = answer.addresses.emplace_back();
    address.size = found->ai_addrlen;
    std::memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
    unmap(address);
  }
  return answer;
}

/// Starts a look-up on a detached thread.
std::shared_ptr<Lookup> start_lookup(const std::string& host, const std::string& port) {
  auto lookup = std::make_shared<Lookup>();
  try {
    std::thread([lookup, host, port] {
      Answer answer = look_up(host, port, 0);
      if (answer.error != 0 && host == "localhost") {  // RFC 6761: always loopback
        answer = look_up("127.0.0.1", port, AI_NUMERICHOST);
      }
      const std::lock_guard lock(lookup->mutex);
      lookup->answer = std::move(answer);
      lookup->is_finished = true;
      lookup->finished.notify_all();
    }).detach();
  } catch (const std::system_error& error) {
    throw Error(Errc::connection,
                fmt::format("cannot start a thread to resolve '{}': {}", host, error.what()));
  }
  return lookup;
}

SocketAddress socket_address(const sockaddr_un& address) {
  SocketAddress result;
  result.size = sizeof address;
  std::memcpy(&result.bytes, &address, sizeof address);
  return result;
}

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

std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port,
                                   std::chrono::steady_clock::time_point deadline,
                                   const StoppablePoll& poll) {
  if (is_unix(host)) {
    return {socket_address(unix_address(host))};
  }
  const std::string service = std::to_string(port);
  if (Answer literal = look_up(host, service, AI_NUMERICHOST); literal.error == 0) {
    return std::move(literal.addresses);
  }
  const auto lookup = start_lookup(host, service);
  std::unique_lock lock(lookup->mutex);
  const auto finished = [&] { return lookup->is_finished; };
  if (!lookup->finished.wait_until(lock, poll.stop(), deadline, finished)) {
    poll.check();
    throw Error(Errc::timeout,
                fmt::format("timeout: the name '{}' was not resolved in time", host));
  }
  if (lookup->answer.error != 0) {
    throw Error(Errc::connection,
                fmt::format("no address for '{}': {}", host, gai_strerror(lookup->answer.error)));
  }
  return std::move(lookup->answer.addresses);
}

UniqueFd connect_socket(std::span<const SocketAddress> addresses, StoppablePoll::TimePoint deadline,
                        const StoppablePoll& poll) {
  return Race(addresses, poll).run(deadline);
}

}  // namespace acc::rendezvous
