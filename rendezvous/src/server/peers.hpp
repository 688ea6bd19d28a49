// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

namespace acc::rendezvous {

/// Use of the server by the clients of one address.
struct Peer {
  std::string name;         ///< the address; empty: Unix sockets
  bool is_limited = false;  ///< false: a client on this machine
  bool is_trusted = false;  ///< a Unix socket's client that runs as the server's user or root
  std::size_t connections = 0;
  std::size_t buffered = 0;  ///< bytes of incomplete requests and unread replies
  std::int64_t keys = 0;     ///< keys that it has added less those that it has deleted
  std::int64_t bytes = 0;    ///< the same for the memory of the store
  int failures = 0;          ///< wrong proofs since `failures_since`
  std::chrono::steady_clock::time_point failures_since{};
};

/// Keeps one Peer per address with connections, keys or failures.
class Peers {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// A peer with this number of wrong proofs is not accepted for a minute.
  explicit Peers(int max_failures) : max_failures_(max_failures) {}

  /// Returns the peer of a new client. IPv6 addresses with the same first 64 bits are one peer,
  /// because one machine may use all of them.
  std::shared_ptr<Peer> of(int client, const sockaddr_storage& address);
  void failed(Peer& peer, Time now);
  /// True if the peer's wrong proofs forbid further connections at `now`.
  [[nodiscard]] bool is_shut_out(Peer& peer, Time now) const;
  /// The store is empty again: forgets all keys.
  void forget_keys();
  void each(const std::function<void(const Peer&)>& see) const {
    for (const auto& [name, peer] : peers_) {
      see(*peer);
    }
  }
  /// Removes peers of which nothing is known, once there are many.
  void tidy(Time now);
  void limit_failures(int max_failures) noexcept { max_failures_ = max_failures; }

 private:
  std::unordered_map<std::string, std::shared_ptr<Peer>> peers_;
  std::size_t tidy_at_ = 1024;
  int max_failures_;
};

}  // namespace acc::rendezvous
