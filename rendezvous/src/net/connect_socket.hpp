// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "net/stoppable_poll.hpp"

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// An address of any family to which a socket can connect.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  [[nodiscard]] int family() const noexcept { return bytes.ss_family; }
  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&bytes);
  }
};

/// Returns all addresses of `host`, a name or a literal, in the system's order of preference.
/// "unix:/path" is a Unix socket; the port is ignored.
///
/// A name is looked up on a separate thread, because getaddrinfo(3) cannot be cancelled. At the
/// deadline (Error(timeout)) or on a stop request (Error(connection)) the thread is left to finish
/// alone. Throws Error(connection) for an unknown name, Error(invalid_argument) for a path that is
/// too long for a socket.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port,
                                   std::chrono::steady_clock::time_point deadline,
                                   const StoppablePoll& poll);

/// Returns a non-blocking socket that is connected to one of `addresses`. They are tried in order:
/// the next one starts when one fails or has not answered within 250 ms, and the first that
/// connects wins ("Happy Eyeballs", RFC 8305). An unreachable address therefore costs at most 250
/// ms.
///
/// Throws Error(timeout) at the deadline, or Error(connection) with the last error when all failed.
UniqueFd connect_socket(std::span<const SocketAddress> addresses, StoppablePoll::TimePoint deadline,
                        const StoppablePoll& poll);

}  // namespace acc::rendezvous
