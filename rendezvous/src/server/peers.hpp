// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "net/peer_user.hpp"

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

namespace acc::rendezvous {

/// Use of the server by the clients of one address, or of one user of this machine.
struct Peer {
  std::string name;         ///< the address, or unix, and the user
  bool is_limited = false;  ///< false: a client of the server's user or root on this machine
  bool is_trusted = false;  ///< the same, at a Unix socket
  std::size_t connections = 0;
  std::size_t pending = 0;     ///< those of them whose protocol's handshake is not complete
  std::size_t handshakes = 0;  ///< those of `pending` that have begun TLS
  std::size_t buffered = 0;    ///< bytes of incomplete requests and unread replies
  std::int64_t keys = 0;       ///< keys that it has added less those that it has deleted
  std::int64_t bytes = 0;      ///< the same for the memory of the store
  int failures = 0;            ///< wrong proofs since `failures_since`
  std::chrono::steady_clock::time_point failures_since{};
  std::optional<std::chrono::steady_clock::time_point> last_right{};  ///< a right proof
};

/// Keeps one Peer per address or user with connections, keys or failures.
class Peers {
 public:
  using Time = std::chrono::steady_clock::time_point;

  /// A peer with this number of wrong proofs is not accepted for a minute, unless a right one came
  /// from it within an hour.
  explicit Peers(int max_failures) : max_failures_(max_failures) {}

  /// Returns the peer of a new client. The users of this machine are peers of their own, as far as
  /// the kernel tells the user of a connection. IPv6 addresses with the same first 64 bits are one
  /// peer, because one machine may use all of them.
  std::shared_ptr<Peer> of(int client, const sockaddr_storage& address);
  static void failed(Peer& peer, Time now);
  static void succeeded(Peer& peer, Time now) { peer.last_right = now; }
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
  PeerUsers users_;
  std::unordered_map<std::string, std::shared_ptr<Peer>> peers_;
  std::size_t tidy_at_ = 1024;
  int max_failures_;
};

}  // namespace acc::rendezvous
