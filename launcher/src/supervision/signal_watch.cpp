// SPDX-License-Identifier: Apache-2.0
#include "supervision/signal_watch.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <sys/signalfd.h>

#include <utility>

namespace acc::launcher::supervision {
namespace asio = boost::asio;

SignalWatch::SignalWatch(const asio::any_io_executor& executor,
                         std::function<void(PassedSignal)> on_signal)
    : signals_(executor), on_signal_(std::move(on_signal)) {
  const sigset_t signals = handled_signals();
  signals_.assign(::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
  asio::co_spawn(executor, watch(), asio::detached);
}

asio::awaitable<void> SignalWatch::watch() {
  for (;;) {
    co_await signals_.async_wait(asio::posix::stream_descriptor::wait_read,
                                 asio::as_tuple(asio::use_awaitable));
    signalfd_siginfo info{};
    // Reads all pending signals. `on_signal_` may close the descriptor.
    while (signals_.is_open() &&
           ::read(signals_.native_handle(), &info, sizeof info) == sizeof info) {
      on_signal_(
          PassedSignal::received(static_cast<int>(info.ssi_signo), info.ssi_code, info.ssi_int));
    }
    if (!signals_.is_open()) {
      co_return;
    }
  }
}

}  // namespace acc::launcher::supervision
