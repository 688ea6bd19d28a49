// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/address.hpp>

#include <string>
#include <vector>

namespace acc::rendezvous {

/// Result of a name look-up.
struct HostAddresses {
  /// Addresses without duplicates. An IPv4-mapped IPv6 address (::ffff:127.0.0.1) is stored as
  /// IPv4.
  std::vector<boost::asio::ip::address> addresses;
  std::string failure;  ///< error of the look-up; empty on success
  /// True if the system could not resolve `localhost` and 127.0.0.1 was used (RFC 6761).
  bool is_assumed = false;
};

/// Resolves a host name or parses an address literal. A name is looked up on a background thread,
/// because name servers can be slow.
boost::asio::awaitable<HostAddresses> addresses_of(boost::asio::any_io_executor executor,
                                                   std::string host);

/// True if the address belongs to this machine, so that a server could listen on it.
bool is_own_address(const boost::asio::ip::address& address);

/// Returns the hosts, for listen_on, of a server that other machines reach as `host`. `found` are
/// the addresses of `host` as this machine resolves it. The result is those that belong to this
/// machine, as literals. It is "*" (all interfaces) if none does, because a gateway or a Kubernetes
/// service may forward to this machine, and if a name resolves to loopback here, because other
/// machines may resolve it to another address (Debian's /etc/hosts has 127.0.1.1 for the host
/// name).
std::vector<std::string> hosts_to_listen_on(const std::string& host, const HostAddresses& found);

}  // namespace acc::rendezvous
