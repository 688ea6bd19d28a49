#pragma once

#include "stoppable_poll.hpp"

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// Where a socket can connect to, of any family.
struct SocketAddress {
  sockaddr_storage bytes{};
  socklen_t size = 0;

  [[nodiscard]] int family() const noexcept { return bytes.ss_family; }
  [[nodiscard]] const sockaddr* get() const noexcept {
    return reinterpret_cast<const sockaddr*>(&bytes);
  }
};

/// All addresses of `host`, a name or a literal, in the system's order of preference;
/// "unix:/path" is a Unix socket, whatever the port.
///
/// A name is looked up on a thread of its own, which is left behind when the deadline passes or
/// stop is requested before the system has an answer. Throws Error(timeout) or Error(connection)
/// then, Error(connection) for a name that nobody knows, Error(invalid_argument) for a path too
/// long for a socket.
std::vector<SocketAddress> resolve(const std::string& host, std::uint16_t port,
                                   std::chrono::steady_clock::time_point deadline,
                                   const StoppablePoll& poll);

}  // namespace acc::rendezvous
