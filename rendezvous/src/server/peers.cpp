// SPDX-License-Identifier: Apache-2.0
#include "server/peers.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace acc::rendezvous {
namespace {

constexpr std::chrono::minutes kFailureWindow{1};
constexpr std::chrono::hours kRightWindow{1};

/// Address of a peer as text, and true if it is one of this machine's loopback addresses.
struct Address {
  std::string text;
  bool is_loopback = false;
};

Address address_of(const sockaddr_storage& from) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (from.ss_family == AF_INET) {
    const in_addr& ip = reinterpret_cast<const sockaddr_in&>(from).sin_addr;
    return {::inet_ntop(AF_INET, &ip, text.data(), text.size()),
            (ntohl(ip.s_addr) >> 24U) == IN_LOOPBACKNET};
  }
  if (from.ss_family == AF_INET6) {
    in6_addr ip = reinterpret_cast<const sockaddr_in6&>(from).sin6_addr;
    const bool is_loopback = IN6_IS_ADDR_LOOPBACK(&ip);
    if (!is_loopback && !IN6_IS_ADDR_V4MAPPED(&ip)) {
      std::fill(ip.s6_addr + 8, ip.s6_addr + 16, std::uint8_t{0});
    }
    return {::inet_ntop(AF_INET6, &ip, text.data(), text.size()), is_loopback};
  }
  return {"unix", true};
}

}  // namespace

std::shared_ptr<Peer> Peers::of(int client, const sockaddr_storage& address) {
  const Address from = address_of(address);
  const auto user = from.is_loopback ? users_.user_of(client) : std::nullopt;
  const bool is_own = user && (*user == ::geteuid() || *user == 0);
  const bool is_unix = address.ss_family == AF_UNIX;
  // "": not known, or no other user
  const std::string other = user && !is_own ? " user " + std::to_string(*user) : "";
  const std::string key = (user && !is_unix ? "loopback" : from.text) + (is_own ? " own" : other);
  std::shared_ptr<Peer>& peer = peers_[key];
  if (!peer) {
    peer = std::make_shared<Peer>();
    peer->name = from.text + other;
    peer->is_limited = !from.is_loopback || !other.empty();
    peer->is_trusted = is_unix && is_own;
  }
  return peer;
}

void Peers::failed(Peer& peer, Time now) {
  if (now - peer.failures_since > kFailureWindow) {
    peer.failures_since = now;
    peer.failures = 0;
  }
  ++peer.failures;
}

bool Peers::is_shut_out(Peer& peer, Time now) const {
  const bool is_known = peer.last_right && now - *peer.last_right <= kRightWindow;
  return !is_known && peer.failures >= max_failures_ && now - peer.failures_since <= kFailureWindow;
}

void Peers::forget_keys() {
  for (auto& [name, peer] : peers_) {
    peer->keys = 0;
    peer->bytes = 0;
  }
}

void Peers::tidy(Time now) {
  if (peers_.size() < tidy_at_) {
    return;
  }
  std::erase_if(peers_, [now](const auto& entry) {
    const Peer& peer = *entry.second;
    return peer.connections == 0 && peer.keys <= 0 && peer.bytes <= 0 &&
           now - peer.failures_since > kFailureWindow &&
           (!peer.last_right || now - *peer.last_right > kRightWindow);
  });
  tidy_at_ = std::max<std::size_t>(1024, 2 * peers_.size());
}

}  // namespace acc::rendezvous
