#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/address.hpp>

#include <string>
#include <vector>

namespace acc::rendezvous {

struct HostAddresses {
  std::vector<boost::asio::ip::address> addresses;
  std::string failure;  ///< why there are none
};

/// Of a name or a literal. A name is looked up beside the executor's thread: a name server may be
/// slow.
boost::asio::awaitable<HostAddresses> addresses_of(boost::asio::any_io_executor executor,
                                                   std::string host);

/// Whether it is one of this machine's: a server could listen there.
bool is_own_address(const boost::asio::ip::address& address);

}  // namespace acc::rendezvous
