// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <string>

/// Helpers shared by the load generators and the baseline server.
namespace acc::bench {

[[noreturn]] inline void fail(const std::string& what) {
  fmt::print(stderr, "{}: {}\n", program_invocation_short_name, what);
  std::exit(1);
}

inline int checked(int result, const char* what) {
  if (result < 0) {
    fail(fmt::format("{}: errno {}", what, errno));
  }
  return result;
}

inline sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

/// Returns a non-blocking TCP socket with TCP_NODELAY; sockets accepted from it inherit the option.
inline UniqueFd new_socket() {
  UniqueFd fd(checked(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket"));
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

/// Starts to connect a new socket to a port of 127.0.0.1.
inline UniqueFd connect_to(std::uint16_t port) {
  UniqueFd fd = new_socket();
  const sockaddr_in address = loopback(port);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno != EINPROGRESS) {
    fail(fmt::format("connect: errno {}", errno));
  }
  return fd;
}

}  // namespace acc::bench
