// SPDX-License-Identifier: Apache-2.0
#include "server/acceptor.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace acc::rendezvous {
namespace {

// Connections accepted per turn, so that connected clients are served in between.
constexpr int kBatch = 64;

/// True if the error concerns one connection only, which the client has aborted or the firewall
/// refuses: the next accept4 may succeed.
bool is_passing(int error) {
  return error == EINTR || error == ECONNABORTED || error == EPROTO || error == EPERM;
}

}  // namespace

Acceptor::Acceptor(Listener listener, ReadySet& set, Accepted accepted, Exhausted exhausted)
    : listener_(std::move(listener)),
      set_(set),
      accepted_(std::move(accepted)),
      exhausted_(std::move(exhausted)) {
  set_.add(listener_.socket.get(), EPOLLIN, *this);
}

Acceptor::~Acceptor() {
  set_.remove(listener_.socket.get());
}

void Acceptor::ready(std::uint32_t /*events*/) {
  for (int i = 0; i < kBatch; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    UniqueFd client(accept4(listener_.socket.get(), reinterpret_cast<sockaddr*>(&address), &size,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client) {
      accepted_(std::move(client), address);
      continue;
    }
    if (is_passing(errno)) {
      continue;
    }
    if (errno != EAGAIN) {
      set_.change(listener_.socket.get(), 0, *this);
      exhausted_(errno);
    }
    return;
  }
}

void Acceptor::resume() {
  set_.change(listener_.socket.get(), EPOLLIN, *this);
}

}  // namespace acc::rendezvous
