#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace acc::rendezvous {

/// No delay for small frames; a peer whose machine went away without a word is noticed within a
/// minute, also while nothing is sent. Best effort: a socket that refuses still works.
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
