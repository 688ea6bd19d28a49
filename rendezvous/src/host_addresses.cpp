#include "acc/rendezvous/host_addresses.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace acc::rendezvous {

namespace asio = boost::asio;

asio::awaitable<HostAddresses> addresses_of(asio::any_io_executor executor, std::string host) {
  HostAddresses result;
  boost::system::error_code is_name;
  const auto address = asio::ip::make_address(host, is_name);
  if (!is_name) {
    result.addresses.push_back(address);
    co_return result;
  }
  asio::ip::tcp::resolver resolver(executor);
  const auto [error, found] =
      co_await resolver.async_resolve(host, "", asio::as_tuple(asio::use_awaitable));
  if (error) {
    result.failure = error.message();
  }
  for (const auto& entry : found) {
    result.addresses.push_back(entry.endpoint().address());
  }
  co_return result;
}

bool is_own_address(const asio::ip::address& address) {
  asio::io_context io;
  asio::ip::tcp::socket socket(io);
  boost::system::error_code error;
  socket.open(asio::ip::tcp::endpoint(address, 0).protocol(), error);
  if (!error) {
    socket.bind({address, 0}, error);
  }
  return !error;
}

}  // namespace acc::rendezvous
