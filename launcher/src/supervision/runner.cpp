// SPDX-License-Identifier: Apache-2.0
#include "supervision/runner.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <utility>

namespace acc::launcher::supervision {
namespace asio = boost::asio;

namespace {

output::OutputMux::Options with_group(output::OutputMux::Options options, pid_t foreground_group) {
  options.foreground_group = foreground_group;
  return options;
}

}  // namespace

Runner::Runner(Guard guard, output::OutputMux::Options output, Events events)
    : leftovers_(std::move(guard.leftovers)),
      alive_(io_, guard.alive.release()),
      events_(std::move(events)),
      signals_(io_),
      output_(io_.get_executor(), with_group(std::move(output), guard.process_group)) {
  const sigset_t signals = handled_signals();
  signals_.assign(::signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC));
  asio::co_spawn(io_, watch_signals(), asio::detached);
  asio::co_spawn(io_, watch_guard(), asio::detached);
}

asio::awaitable<void> Runner::watch_signals() {
  while (signals_.is_open()) {
    co_await signals_.async_wait(asio::posix::stream_descriptor::wait_read,
                                 asio::as_tuple(asio::use_awaitable));
    signalfd_siginfo info{};
    // Reads all pending signals. `on_signal` may close the descriptor.
    while (signals_.is_open() &&
           ::read(signals_.native_handle(), &info, sizeof info) == sizeof info) {
      events_.on_signal(
          PassedSignal::received(static_cast<int>(info.ssi_signo), info.ssi_code, info.ssi_int));
    }
  }
}

// The guardian and the keeper are the processes above this one. They hold the other end of this
// pipe, which becomes readable when they die.
asio::awaitable<void> Runner::watch_guard() {
  co_await alive_.async_wait(asio::posix::stream_descriptor::wait_read,
                             asio::as_tuple(asio::use_awaitable));
  if (!alive_.is_open()) {
    co_return;  // the job is over
  }
  if (events_.before_exit) {
    co_await events_.before_exit();
  }
  leftovers_.clean_up();  // also processes that were started meanwhile
  ::_exit(128 + SIGKILL);
}

void Runner::close() {
  signals_.close();
  alive_.close();
}

void Runner::rethrow_fault() const {
  if (fault_) {
    std::rethrow_exception(fault_);
  }
}

}  // namespace acc::launcher::supervision
