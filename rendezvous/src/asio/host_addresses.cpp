// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/host_addresses.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <algorithm>

namespace acc::rendezvous {

namespace asio = boost::asio;
using asio::ip::address;

namespace {

constexpr std::string_view kLocalhost = "localhost";

bool is_literal(const std::string& host) {
  boost::system::error_code is_name;
  asio::ip::make_address(host, is_name);
  return !is_name;
}

/// Adds an address unless it is there already; an IPv4-mapped IPv6 address as IPv4.
void add(address found, std::vector<address>& addresses) {
  if (found.is_v6() && found.to_v6().is_v4_mapped()) {
    found = asio::ip::make_address_v4(asio::ip::v4_mapped, found.to_v6());
  }
  if (std::ranges::find(addresses, found) == addresses.end()) {
    addresses.push_back(found);
  }
}

}  // namespace

asio::awaitable<HostAddresses> addresses_of(asio::any_io_executor executor, std::string host) {
  HostAddresses result;
  if (is_literal(host)) {
    add(asio::ip::make_address(host), result.addresses);
    co_return result;
  }
  asio::ip::tcp::resolver resolver(executor);
  const auto [error, found] =
      co_await resolver.async_resolve(host, "", asio::as_tuple(asio::use_awaitable));
  for (const auto& entry : found) {
    add(entry.endpoint().address(), result.addresses);
  }
  if (error && host == kLocalhost) {  // RFC 6761: always loopback
    result.addresses = {asio::ip::address_v4::loopback()};
    result.is_assumed = true;
  } else if (error) {
    result.failure = error.message();
  }
  co_return result;
}

bool is_own_address(const address& address) {
  // The kernel allows bind(2) only to local addresses. Port 0 takes any free port.
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  boost::system::error_code error;
  socket.open(asio::ip::tcp::endpoint(address, 0).protocol(), error);
  if (!error) {
    socket.bind({address, 0}, error);
  }
  return !error;
}

std::vector<std::string> hosts_to_listen_on(const std::string& host, const HostAddresses& found) {
  // "localhost" and 127.0.0.1 mean loopback everywhere; a host name only on this machine.
  const bool means_loopback = host == kLocalhost || is_literal(host);
  std::vector<std::string> hosts;
  for (const address& each : found.addresses) {
    if (each.is_loopback() && !means_loopback) {
      return {"*"};
    }
    if (is_own_address(each)) {
      hosts.push_back(each.to_string());
    }
  }
  return hosts.empty() ? std::vector<std::string>{"*"} : hosts;
}

}  // namespace acc::rendezvous
