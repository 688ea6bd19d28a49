// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "supervision/signals.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <functional>

namespace acc::launcher::supervision {

/// Delivers the signals that the supervisor blocks (`handled_signals`) in the event loop, one call
/// per signal, by reading a signalfd.
class SignalWatch {
 public:
  /// Calls `on_signal` for each signal until `close`.
  SignalWatch(const boost::asio::any_io_executor& executor,
              std::function<void(PassedSignal)> on_signal);

  void close() { signals_.close(); }

 private:
  boost::asio::awaitable<void> watch();

  boost::asio::posix::stream_descriptor signals_;
  std::function<void(PassedSignal)> on_signal_;
};

}  // namespace acc::launcher::supervision
