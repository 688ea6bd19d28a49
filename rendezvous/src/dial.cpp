#include "dial.hpp"

#include "tune_socket.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/use_awaitable.hpp>

#include <vector>

namespace acc::rendezvous {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);

struct Resolved {
  std::vector<tcp::endpoint> endpoints;
  std::string failure;
};

asio::awaitable<Resolved> resolve(asio::any_io_executor executor, std::string host,
                                  std::uint16_t port) {
  Resolved result;
  error_code not_numeric;
  const auto address = asio::ip::make_address(host, not_numeric);
  if (!not_numeric) {
    result.endpoints.emplace_back(address, port);
    co_return result;
  }
  tcp::resolver resolver(executor);
  const auto [error, found] = co_await resolver.async_resolve(host, std::to_string(port), kResult);
  if (error) {
    result.failure = error.message();
  } else {
    result.endpoints.assign(found.begin(), found.end());
  }
  co_return result;
}

}  // namespace

Alarm::Alarm(tcp::socket& socket, std::chrono::milliseconds limit)
    : timer_(socket.get_executor(), limit) {
  timer_.async_wait([&socket, fired = std::weak_ptr(fired_)](const error_code& error) {
    if (const auto alarm = fired.lock(); alarm && !error) {
      *alarm = true;
      error_code ignored;
      socket.close(ignored);  // `cancel` would only go on to the next address
    }
  });
}

Alarm::~Alarm() = default;

asio::awaitable<std::string> dial(tcp::socket& socket, std::string host, std::uint16_t port,
                                  std::chrono::milliseconds limit) {
  const Resolved target = co_await resolve(socket.get_executor(), std::move(host), port);
  if (!target.failure.empty()) {
    co_return target.failure;
  }
  const Alarm alarm(socket, limit);
  const auto [error, endpoint] = co_await asio::async_connect(socket, target.endpoints, kResult);
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
  if (error) {
    return "";
  }
  const auto other = socket.remote_endpoint(error);
  return error || own.address() == other.address() ? "" : own.address().to_string();
}

}  // namespace acc::rendezvous
