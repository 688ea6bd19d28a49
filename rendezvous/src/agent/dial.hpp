// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace acc::rendezvous {

/// Makes one attempt to connect `socket` to `host` within `limit`; tries all addresses of a name.
/// Returns the reason of a failure, or "". Does not block its thread: names are resolved on
/// another.
boost::asio::awaitable<std::string> dial(boost::asio::ip::tcp::socket& socket, std::string host,
                                         std::uint16_t port, std::chrono::milliseconds limit);

/// Returns the local address of a connection; "" if both ends are on the same machine.
std::string own_address(const boost::asio::ip::tcp::socket& socket);

}  // namespace acc::rendezvous
