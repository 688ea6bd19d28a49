#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace acc::rendezvous {

/// One attempt to connect `socket` to `host`, all addresses of a name, within `limit`. Returns why
/// it failed, or "". Never blocks its thread: names are resolved beside it.
boost::asio::awaitable<std::string> dial(boost::asio::ip::tcp::socket& socket, std::string host,
                                         std::uint16_t port, std::chrono::milliseconds limit);

/// The address that this end of the connection has; "" where both ends are the same machine.
std::string own_address(const boost::asio::ip::tcp::socket& socket);

}  // namespace acc::rendezvous
