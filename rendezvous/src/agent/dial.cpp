// SPDX-License-Identifier: Apache-2.0
#include "agent/dial.hpp"

#include "acc/rendezvous/host_addresses.hpp"
#include "net/tune_socket.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <memory>
#include <utility>
#include <vector>

namespace acc::rendezvous {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);

/// Closes `socket` when the time is up, which makes its pending operation fail. Does nothing if it
/// is destroyed before.
class Alarm {
 public:
  Alarm(tcp::socket& socket, std::chrono::milliseconds limit)
      : timer_(socket.get_executor(), limit) {
    timer_.async_wait([&socket, fired = std::weak_ptr(fired_)](const error_code& error) {
      if (const auto alarm = fired.lock(); alarm && !error) {
        *alarm = true;
        error_code ignored;
        socket.close(ignored);  // after `cancel`, async_connect would try the next address
      }
    });
  }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  [[nodiscard]] bool fired() const noexcept { return *fired_; }

 private:
  asio::steady_timer timer_;
  std::shared_ptr<bool> fired_ = std::make_shared<bool>(false);
};

}  // namespace

asio::awaitable<std::string> dial(tcp::socket& socket, std::string host, std::uint16_t port,
                                  std::chrono::milliseconds limit) {
  const auto target = co_await addresses_of(socket.get_executor(), std::move(host));
  if (!target.failure.empty()) {
    co_return target.failure;
  }
  std::vector<tcp::endpoint> endpoints;
  for (const auto& address : target.addresses) {
    endpoints.emplace_back(address, port);
  }
  const Alarm alarm(socket, limit);
  const auto [error, endpoint] = co_await asio::async_connect(socket, endpoints, kResult);
  if (alarm.fired()) {
    co_return "no answer";
  }
  if (error) {
    co_return error.message();
  }
  tune_socket(socket.native_handle());
  co_return "";
}

std::string own_address(const tcp::socket& socket) {
  error_code error;
  const auto own = socket.local_endpoint(error);
  // The two loopback addresses may differ: a connection to 127.0.1.1 comes from 127.0.0.1.
  if (error || own.address().is_loopback()) {
    return "";
  }
  const auto other = socket.remote_endpoint(error);
  return error || own.address() == other.address() ? "" : own.address().to_string();
}

}  // namespace acc::rendezvous
