#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace acc::rendezvous {

/// Bound, listening, non-blocking acceptors for every address of `host` ("": all interfaces, IPv4
/// and IPv6), all on one port; 0 takes a free one. Throws Error(connection).
std::vector<boost::asio::ip::tcp::acceptor> listen_on(boost::asio::io_context& io,
                                                      const std::string& host, std::uint16_t port);

}  // namespace acc::rendezvous
