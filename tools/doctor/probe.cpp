// SPDX-License-Identifier: Apache-2.0
#include "doctor/probe.hpp"

#include "acc/base/unique_fd.hpp"
#include "doctor/answering.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

// Probes another machine: connects, sends one byte, and reads the 16 bytes of `Answer`. The steps
// tell apart where a connection fails. No reply to the connect means dropped packets. A connection
// that is accepted without an answer means that the kernel works, but the program is frozen. An
// answer with another token comes from another machine.
namespace acc::doctor {
namespace {

using Clock = std::chrono::steady_clock;
using AddressInfo = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Resolved look_up(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int status = ::getaddrinfo(name.c_str(), nullptr, &hints, &found); status != 0) {
    return {{}, ::gai_strerror(status)};
  }
  const AddressInfo owner(found, ::freeaddrinfo);
  Resolved resolved;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(each->ai_addr, each->ai_addrlen, text.data(), text.size(), nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      resolved.addresses.emplace_back(text.data());
    }
  }
  std::ranges::sort(resolved.addresses);
  const auto twice = std::ranges::unique(resolved.addresses);
  resolved.addresses.erase(twice.begin(), twice.end());
  return resolved;
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::max<std::int64_t>(0, left));
}

/// State of one attempt to connect: connecting, then accepted and waiting for the answer, then
/// done.
struct Connecting {
  UniqueFd socket;
  bool accepted = false;
  bool done = false;
  Answer answer;
};

Reached reason(int error) {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET: return Reached::refused;
    case ETIMEDOUT: return Reached::no_answer;
    default: return Reached::no_route;
  }
}

/// Starts a non-blocking connect. The attempt is done at once if that fails.
void begin(Connecting& connecting, Attempt& attempt) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(attempt.port);
  connecting.done = true;
  attempt.reached = Reached::no_route;
  if (::getaddrinfo(attempt.address.c_str(), port.c_str(), &hints, &found) != 0) {
    return;
  }
  const AddressInfo owner(found, ::freeaddrinfo);
  connecting.socket.reset(
      ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int at_once = 1;
  ::setsockopt(connecting.socket.get(), IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
  if (::connect(connecting.socket.get(), found->ai_addr, found->ai_addrlen) == 0 ||
      errno == EINPROGRESS) {
    connecting.done = false;
    attempt.reached = Reached::no_answer;
  } else {
    attempt.reached = reason(errno);
  }
}

/// Handles the end of the connect: sends the probe byte if it succeeded.
void ask_once_accepted(Connecting& connecting, Attempt& attempt, bool wants_answer) {
  int error = 0;
  socklen_t length = sizeof(error);
  ::getsockopt(connecting.socket.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) {
    attempt.reached = reason(error);
    connecting.done = true;
    return;
  }
  connecting.accepted = true;
  attempt.reached = wants_answer ? Reached::silent : Reached::yes;
  connecting.done = !wants_answer;
  const char request = '?';
  ::send(connecting.socket.get(), &request, 1, MSG_NOSIGNAL);
}

void read_answer(Connecting& connecting, Attempt& attempt, std::uint64_t token) {
  const ssize_t got =
      ::recv(connecting.socket.get(), &connecting.answer, sizeof(connecting.answer), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  connecting.done = true;
  const bool whole = got == sizeof(connecting.answer);  // 16 bytes are sent in one segment
  attempt.reached = whole && connecting.answer.token == token ? Reached::yes : Reached::other;
}

void advance(Connecting& connecting, Attempt& attempt, const Target& target) {
  connecting.accepted ? read_answer(connecting, attempt, target.token)
                      : ask_once_accepted(connecting, attempt, target.token != 0);
}

/// Runs one batch of attempts in a poll loop until all are done or the limit is over.
void connect_some(std::span<const Target> targets, std::span<Attempt> attempts,
                  std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::vector<Connecting> all(targets.size());
  for (std::size_t i = 0; i < targets.size(); ++i) {
    attempts[i] = {targets[i].address, targets[i].port, Reached::no_answer};
    begin(all[i], attempts[i]);
  }
  while (true) {
    std::vector<pollfd> waits;
    std::vector<std::size_t> whose;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (!all[i].done) {
        waits.push_back(
            {all[i].socket.get(), static_cast<short>(all[i].accepted ? POLLIN : POLLOUT), 0});
        whose.push_back(i);
      }
    }
    const int left = milliseconds_until(deadline);
    if (waits.empty() || left == 0) {
      return;
    }
    ::poll(waits.data(), waits.size(), left);
    for (std::size_t k = 0; k < waits.size(); ++k) {
      if (waits[k].revents != 0) {
        advance(all[whose[k]], attempts[whose[k]], targets[whose[k]]);
      }
    }
  }
}

/// Connects and returns the socket; empty if that fails or takes until the deadline.
UniqueFd connected(const Target& target, Clock::time_point deadline) {
  Connecting connecting;
  Attempt attempt{target.address, target.port, Reached::no_answer};
  begin(connecting, attempt);
  pollfd wait{connecting.socket.get(), POLLOUT, 0};
  int error = 0;
  socklen_t length = sizeof(error);
  if (connecting.done || ::poll(&wait, 1, milliseconds_until(deadline)) != 1 ||
      ::getsockopt(wait.fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
    return {};
  }
  return std::move(connecting.socket);
}

std::int64_t real_time_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

/// One exchange of a clock comparison. Assumes that both directions take equally long.
std::optional<ClockReading> exchange(int socket, std::uint64_t token, Clock::time_point deadline) {
  const char request = '?';
  Answer answer;
  pollfd wait{socket, POLLIN, 0};
  const std::int64_t sent = real_time_ns();
  const auto begin = Clock::now();
  if (::send(socket, &request, 1, MSG_NOSIGNAL) != 1 ||
      ::poll(&wait, 1, milliseconds_until(deadline)) != 1 ||
      ::recv(socket, &answer, sizeof(answer), MSG_DONTWAIT) != sizeof(answer) ||
      answer.token != token) {
    return std::nullopt;
  }
  const std::chrono::duration<double, std::nano> round_trip = Clock::now() - begin;
  const double here = static_cast<double>(answer.clock_ns - sent) - round_trip.count() / 2;
  return ClockReading{here / 1e6, round_trip.count() / 1e3};
}

}  // namespace

std::map<std::string, Resolved> resolve(const std::vector<std::string>& names,
                                        std::chrono::milliseconds limit) {
  struct Shared {
    std::mutex mutex;  ///< guards `results`
    std::condition_variable came;
    std::map<std::string, Resolved> results;
  };
  const auto shared = std::make_shared<Shared>();
  const std::set<std::string> different(names.begin(), names.end());  // machines may share a name
  for (const std::string& name : different) {
    std::thread([shared, name] {
      Resolved result = look_up(name);
      const std::lock_guard lock(shared->mutex);
      shared->results[name] = std::move(result);
      shared->came.notify_one();
    }).detach();
  }
  std::unique_lock lock(shared->mutex);
  shared->came.wait_for(lock, limit, [&] { return shared->results.size() == different.size(); });
  std::map<std::string, Resolved> results = shared->results;
  for (const std::string& name : names) {
    results.try_emplace(name,
                        Resolved{{}, "no answer within " + std::to_string(limit.count()) + " ms"});
  }
  return results;
}

std::vector<Attempt> connect_to(const std::vector<Target>& targets,
                                std::chrono::milliseconds limit) {
  constexpr std::size_t kAtOnce = 256;  // below the usual soft limit of 1,024 open files
  std::vector<Attempt> attempts(targets.size());
  for (std::size_t i = 0; i < targets.size(); i += kAtOnce) {
    const std::size_t count = std::min(kAtOnce, targets.size() - i);
    connect_some(std::span(targets).subspan(i, count), std::span(attempts).subspan(i, count),
                 limit);
  }
  return attempts;
}

std::optional<ClockReading> compare_clocks(const Target& target, std::chrono::milliseconds limit) {
  constexpr int kExchanges = 20;
  const auto deadline = Clock::now() + limit;
  const UniqueFd socket = connected(target, deadline);
  std::optional<ClockReading> best;
  for (int i = 0; socket && i < kExchanges; ++i) {
    const auto reading = exchange(socket.get(), target.token, deadline);
    if (!reading) {
      break;
    }
    if (!best || reading->round_trip_us < best->round_trip_us) {
      best = reading;
    }
  }
  return best;
}

}  // namespace acc::doctor
