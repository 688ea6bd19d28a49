#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace acc::rendezvous {

/// Closes `socket`, and so ends what it is about, unless it is destroyed before the time is up.
class Alarm {
 public:
  Alarm(boost::asio::ip::tcp::socket& socket, std::chrono::milliseconds limit);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  [[nodiscard]] bool fired() const noexcept { return *fired_; }

 private:
  boost::asio::steady_timer timer_;
  std::shared_ptr<bool> fired_ = std::make_shared<bool>(false);
};

/// One attempt to connect `socket` to `host`, all addresses of a name, within `limit`. Returns why
/// it failed, or "". Never blocks its thread: names are resolved beside it.
boost::asio::awaitable<std::string> dial(boost::asio::ip::tcp::socket& socket, std::string host,
                                         std::uint16_t port, std::chrono::milliseconds limit);

/// The address that this end of the connection has; "" where both ends are the same machine.
std::string own_address(const boost::asio::ip::tcp::socket& socket);

}  // namespace acc::rendezvous
