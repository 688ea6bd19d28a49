// SPDX-License-Identifier: Apache-2.0
#include "doctor/answering.hpp"

#include "acc/base/error.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>

namespace acc::doctor {
namespace {

/// Listens on all addresses: IPv6 and IPv4 on one socket, or IPv4 alone if there is no IPv6.
UniqueFd listen_on(std::uint16_t port) {
  constexpr int kBacklog = 1024;
  const int both = 0;
  UniqueFd six(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in6 any6{};
  any6.sin6_family = AF_INET6;
  any6.sin6_port = htons(port);
  if (six && ::setsockopt(six.get(), IPPROTO_IPV6, IPV6_V6ONLY, &both, sizeof(both)) == 0 &&
      ::bind(six.get(), reinterpret_cast<sockaddr*>(&any6), sizeof(any6)) == 0 &&
      ::listen(six.get(), kBacklog) == 0) {
    return six;
  }
  UniqueFd four(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in any4{};
  any4.sin_family = AF_INET;
  any4.sin_port = htons(port);
  if (four && ::bind(four.get(), reinterpret_cast<sockaddr*>(&any4), sizeof(any4)) == 0 &&
      ::listen(four.get(), kBacklog) == 0) {
    return four;
  }
  return {};
}

std::uint16_t port_of(const UniqueFd& socket) {
  sockaddr_in6 own{};  // the port is at the same offset in both families
  socklen_t length = sizeof(own);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length);
  return ntohs(own.sin6_port);
}

/// Listens on the first free port of the 64 from `from` on, else on one that the system chooses.
UniqueFd listen_near(int from, int high) {
  constexpr int kTries = 64;
  for (int port = from; port < from + kTries && port <= high; ++port) {
    if (UniqueFd socket = listen_on(static_cast<std::uint16_t>(port))) {
      return socket;
    }
  }
  return listen_on(0);
}

/// Answers one probe of a connection. Returns false if the connection is to be closed.
bool answer(int socket, std::uint64_t token) {
  char request = 0;
  const ssize_t got = ::recv(socket, &request, 1, MSG_DONTWAIT);
  if (got == 1) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const Answer reply{token, std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()};
    return ::send(socket, &reply, sizeof(reply), MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(reply);
  }
  return got < 0 && (errno == EAGAIN || errno == EINTR);
}

}  // namespace

Answering::Answering(int port_low, int port_high, std::uint64_t token)
    : token_(token), wake_(::eventfd(0, EFD_CLOEXEC)) {
  for (int i = 0; i < kPorts; ++i) {
    UniqueFd socket = listen_near(port_low + (port_high - port_low) / kPorts * i, port_high);
    if (!socket) {
      throw Error(Errc::connection,
                  std::string("doctor: cannot listen on any port: ") + std::strerror(errno));
    }
    ports_.push_back(port_of(socket));
    listeners_.push_back(std::move(socket));
  }
  thread_ = std::jthread([this](const std::stop_token& stop) { serve(stop); });
}

Answering::~Answering() {
  thread_.request_stop();
  ::eventfd_write(wake_.get(), 1);
}

// Limit of connections; beyond it, the oldest is closed. More than the machines of a job open at
// once. Without a limit, strangers could use up all file descriptors.
constexpr std::size_t kMostPeers = 512;

// One poll loop for listeners and connections. A new connection gets TCP_NODELAY, because delayed
// answers would distort the clock comparison.
void Answering::serve(const std::stop_token& stop) const {
  std::vector<UniqueFd> peers;
  while (!stop.stop_requested()) {
    std::vector<pollfd> waits = {{wake_.get(), POLLIN, 0}};
    for (const UniqueFd& each : listeners_) {
      waits.push_back({each.get(), POLLIN, 0});
    }
    for (const UniqueFd& each : peers) {
      waits.push_back({each.get(), POLLIN, 0});
    }
    if (::poll(waits.data(), waits.size(), -1) < 0) {
      if (errno != EINTR && errno != ENOMEM) {
        return;  // it would fail again
      }
      continue;
    }
    const std::size_t first_peer = 1 + listeners_.size();
    for (std::size_t i = waits.size(); i-- > first_peer;) {
      if (waits[i].revents != 0 && !answer(waits[i].fd, token_)) {
        peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i - first_peer));
      }
    }
    for (std::size_t i = 1; i < first_peer; ++i) {
      const int accepted = waits[i].revents != 0 ? ::accept4(waits[i].fd, nullptr, nullptr,
                                                             SOCK_CLOEXEC | SOCK_NONBLOCK)
                                                 : -1;
      if (accepted >= 0 && peers.size() == kMostPeers) {
        peers.erase(peers.begin());
      }
      if (accepted >= 0) {
        const int at_once = 1;
        ::setsockopt(accepted, IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof(at_once));
        peers.emplace_back(accepted);
      }
    }
  }
}

}  // namespace acc::doctor
