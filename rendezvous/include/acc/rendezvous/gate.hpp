#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace acc::rendezvous {

/// Something that happens and that coroutines of the same thread wait for.
class Gate {
 public:
  explicit Gate(const boost::asio::any_io_executor& executor)
      : timer_(executor, boost::asio::steady_timer::time_point::max()) {}

  void open() {
    is_open_ = true;
    timer_.cancel();
  }

  void close() { is_open_ = false; }

  boost::asio::awaitable<void> passed() {
    while (!is_open_) {
      co_await timer_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    }
  }

 private:
  bool is_open_ = false;
  boost::asio::steady_timer timer_;
};

}  // namespace acc::rendezvous
