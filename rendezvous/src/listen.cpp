#include "listen.hpp"

#include "acc/base/error.hpp"
#include "acc/rendezvous/server.hpp"

#include <boost/asio/ip/v6_only.hpp>
#include <fmt/format.h>

#include <algorithm>

namespace acc::rendezvous {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// A free port of the first address may be taken on the second; try another one this often.
constexpr int kFreePortTries = 16;

[[noreturn]] void fail(const std::string& host, std::uint16_t port, const error_code& error) {
  std::string message =
      fmt::format("cannot listen on {}:{}: {} (errno {})", host.empty() ? "*" : host, port,
                  error.message(), error.value());
  if (error == asio::error::address_in_use) {
    const auto owner = Server::port_owner(port);
    message +=
        fmt::format("; {} listens there. Choose another port", owner.value_or("another socket"));
  }
  throw Error(Errc::connection, message);
}

std::vector<tcp::endpoint> resolve(asio::io_context& io, const std::string& host,
                                   std::uint16_t port) {
  if (host.empty()) {
    return {{asio::ip::address_v4::any(), port}, {asio::ip::address_v6::any(), port}};
  }
  error_code error;
  if (const auto address = asio::ip::make_address(host, error); !error) {
    return {{address, port}};
  }
  const auto found = tcp::resolver(io).resolve(host, std::to_string(port), error);
  if (error) {
    throw Error(Errc::connection,
                fmt::format("cannot listen on {}:{}: no address for this name ({})", host, port,
                            error.message()));
  }
  return {found.begin(), found.end()};
}

tcp::acceptor open(asio::io_context& io, const tcp::endpoint& endpoint, error_code& error) {
  tcp::acceptor acceptor(io);
  acceptor.open(endpoint.protocol(), error);
  if (error) {
    return acceptor;
  }
  acceptor.set_option(tcp::acceptor::reuse_address(true));
  if (endpoint.address().is_v6()) {
    acceptor.set_option(asio::ip::v6_only(true));
  }
  acceptor.non_blocking(true);
  acceptor.bind(endpoint, error);
  if (!error) {
    acceptor.listen(tcp::acceptor::max_listen_connections, error);
  }
  return acceptor;
}

/// A machine without IPv6 still resolves names to IPv6 addresses.
bool family_is_missing(const error_code& error) {
  return error == asio::error::address_family_not_supported ||
         error == error_code(EADDRNOTAVAIL, boost::system::system_category());
}

bool is_own_address(const asio::ip::address& address) {
  asio::io_context io;
  tcp::socket socket(io);
  error_code error;
  socket.open(tcp::endpoint(address, 0).protocol(), error);
  if (!error) {
    socket.bind({address, 0}, error);
  }
  return !error;
}

}  // namespace

bool Server::is_own_address(const std::string& host) {
  asio::io_context io;
  try {
    return std::ranges::any_of(resolve(io, host, 0), [](const tcp::endpoint& endpoint) {
      return rendezvous::is_own_address(endpoint.address());
    });
  } catch (const Error&) {
    return false;
  }
}

std::vector<tcp::acceptor> listen_on(asio::io_context& io, const std::string& host,
                                     std::uint16_t port) {
  const auto endpoints = resolve(io, host, port);
  error_code error;
  for (int attempt = 0; attempt < kFreePortTries; ++attempt) {
    std::vector<tcp::acceptor> acceptors;
    error_code last;
    for (tcp::endpoint endpoint : endpoints) {
      endpoint.port(acceptors.empty() ? port : acceptors.front().local_endpoint().port());
      tcp::acceptor acceptor = open(io, endpoint, error);
      if (!error) {
        acceptors.push_back(std::move(acceptor));
        continue;
      }
      last = error;
      if (!family_is_missing(error)) {
        acceptors.clear();
        break;
      }
    }
    if (!acceptors.empty()) {
      return acceptors;
    }
    error = last;
    if (port != 0) {
      break;
    }
  }
  fail(host, port, error);
}

}  // namespace acc::rendezvous
