#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/address.hpp>

#include <string>
#include <vector>

namespace acc::rendezvous {

struct HostAddresses {
  /// Each one once; an IPv4 address that is written as IPv6 (::ffff:127.0.0.1) is IPv4.
  std::vector<boost::asio::ip::address> addresses;
  std::string failure;  ///< why there are none
  /// The system does not know `localhost`, which is loopback all the same.
  bool is_assumed = false;
};

/// The addresses of a name or a literal. A name is looked up on another thread than the executor's:
/// a name server may be slow.
boost::asio::awaitable<HostAddresses> addresses_of(boost::asio::any_io_executor executor,
                                                   std::string host);

/// True if it is one of this machine's: a server could listen there.
bool is_own_address(const boost::asio::ip::address& address);

/// Where a server listens that others reach at `host`, whose addresses are `found` here: those of
/// them that are this machine's, as literals for listen_on. "*" where there is none, because a
/// gateway or a service leads here, and where a name leads to loopback here and elsewhere to
/// another address (127.0.1.1 in Debian's /etc/hosts).
std::vector<std::string> hosts_to_listen_on(const std::string& host, const HostAddresses& found);

}  // namespace acc::rendezvous
