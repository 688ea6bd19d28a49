#include "acceptor.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace acc::rendezvous {
namespace {

// Clients that are here already are served before more come in.
constexpr int kBatch = 64;

/// Of one connection that did not come about; the next one may.
bool is_passing(int error) {
  return error == EINTR || error == ECONNABORTED || error == EPROTO || error == EPERM;
}

}  // namespace

Acceptor::Acceptor(ListeningSocket socket, ReadySet& set, Accepted accepted, Exhausted exhausted)
    : socket_(std::move(socket)),
      set_(set),
      accepted_(std::move(accepted)),
      exhausted_(std::move(exhausted)) {
  set_.add(socket_.fd.get(), EPOLLIN, *this);
}

Acceptor::~Acceptor() {
  set_.remove(socket_.fd.get());
  if (!socket_.path.empty()) {
    unlink(socket_.path.c_str());
  }
}

void Acceptor::ready(std::uint32_t /*events*/) {
  for (int i = 0; i < kBatch; ++i) {
    UniqueFd client(accept4(socket_.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (client) {
      accepted_(std::move(client));
      continue;
    }
    if (is_passing(errno)) {
      continue;
    }
    if (errno != EAGAIN) {
      set_.change(socket_.fd.get(), 0, *this);
      exhausted_(errno);
    }
    return;
  }
}

void Acceptor::resume() {
  set_.change(socket_.fd.get(), EPOLLIN, *this);
}

}  // namespace acc::rendezvous
