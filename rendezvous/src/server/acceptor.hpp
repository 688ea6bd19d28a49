// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/listener.hpp"
#include "server/ready_set.hpp"

#include <sys/socket.h>

#include <functional>

namespace acc::rendezvous {

/// Accepts the clients of one listening socket, several per turn of the server.
class Acceptor final : public ReadySet::Watcher {
 public:
  /// Called with each client and its address.
  using Accepted = std::function<void(UniqueFd, const sockaddr_storage&)>;
  /// Called with errno when accept4 fails because descriptors or memory are used up (EMFILE,
  /// ENFILE, ENOMEM). The acceptor then ignores its socket until `resume`: the socket stays
  /// readable, so epoll would report it without end.
  using Exhausted = std::function<void(int error)>;

  /// Starts to accept at once. Throws Error(connection).
  Acceptor(Listener listener, ReadySet& set, Accepted accepted, Exhausted exhausted);
  ~Acceptor();
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;

  void ready(std::uint32_t events) override;
  void resume();
  [[nodiscard]] std::uint16_t port() const noexcept { return listener_.port; }

 private:
  Listener listener_;
  ReadySet& set_;
  Accepted accepted_;
  Exhausted exhausted_;
};

}  // namespace acc::rendezvous
