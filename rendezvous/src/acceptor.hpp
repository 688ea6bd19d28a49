#pragma once

#include "acc/rendezvous/listener.hpp"
#include "ready_set.hpp"

#include <functional>

namespace acc::rendezvous {

/// Takes the clients that come to one listening socket, many in a turn.
class Acceptor final : public ReadySet::Watcher {
 public:
  using Accepted = std::function<void(UniqueFd)>;
  /// No descriptors or memory are left (errno): nobody is accepted until `resume`.
  using Exhausted = std::function<void(int error)>;

  /// Begins at once. Throws Error(connection).
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
