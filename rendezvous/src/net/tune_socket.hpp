// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace acc::rendezvous {

/// Sets the options of a connection. TCP_NODELAY: small frames are sent at once. Keep-alive: an
/// idle connection to a machine that crashed or was disconnected fails after 30 s + 3 x 10 s
/// (tcp(7)). Errors are ignored: a Unix socket refuses the TCP options and still works.
inline void tune_socket(int fd) noexcept {
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

}  // namespace acc::rendezvous
