// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace acc::rendezvous {

/// A condition that coroutines of one thread wait for. It stays open until `close` is called, so a
/// coroutine that arrives late passes at once.
class Gate {
 public:
  explicit Gate(const boost::asio::any_io_executor& executor)
      : timer_(executor, boost::asio::steady_timer::time_point::max()) {}

  /// Lets every waiting coroutine continue: cancelling the timer completes its pending waits.
  void open() {
    is_open_ = true;
    timer_.cancel();
  }

  void close() { is_open_ = false; }

  /// Completes when the gate is open. Checks again after each wake-up, because the gate may have
  /// been closed before the coroutine could run.
  boost::asio::awaitable<void> passed() {
    while (!is_open_) {
      co_await timer_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    }
  }

 private:
  bool is_open_ = false;
  boost::asio::steady_timer timer_;  // never expires; only cancelled
};

}  // namespace acc::rendezvous
