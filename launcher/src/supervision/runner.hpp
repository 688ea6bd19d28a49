// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/log.hpp"
#include "output/output_mux.hpp"
#include "supervision/descriptors.hpp"
#include "supervision/guardian.hpp"
#include "supervision/signals.hpp"
#include "supervision/worker_process.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <exception>
#include <functional>
#include <string_view>
#include <utility>

namespace acc::launcher::supervision {

/// The supervisor process around a job: its event loop, signals, output, and leftovers. Shared by
/// Job, whose processes are workers, and RemoteJob, whose processes are the clients that start
/// other machines. If the guardian or the keeper is killed, it kills everything below this process
/// and exits. Not thread-safe: everything runs on the event loop's thread.
class Runner {
 public:
  struct Events {
    /// Called for each of the signals that the supervisor blocks (`handled_signals`).
    std::function<void(PassedSignal)> on_signal;
    /// Completes with the last steps before the exit when the guardian or the keeper was killed. It
    /// should end the workers without a delay. May be empty.
    std::function<boost::asio::awaitable<void>()> before_exit = {};
  };

  Runner(Guard guard, output::OutputMux::Options output, Events events);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  [[nodiscard]] boost::asio::io_context& io() noexcept { return io_; }
  [[nodiscard]] output::OutputMux& output() noexcept { return output_; }
  [[nodiscard]] const output::OutputMux& output() const noexcept { return output_; }
  [[nodiscard]] Leftovers& leftovers() noexcept { return leftovers_; }
  /// Resources for the processes of the job.
  [[nodiscard]] WorkerSurroundings surroundings() noexcept {
    return {.cgroup = &leftovers_.cgroup(),
            .guardian_group = leftovers_.guardian_group(),
            .descriptors = descriptors_.original()};
  }

  /// Stops waiting for signals and for the guardian, so that io().run() returns when the output is
  /// written (OutputMux::flushed) and the job waits for nothing else.
  void close();

  /// Keeps an internal fault, which ends the job, for `rethrow_fault`. The last one counts.
  void fail(std::exception_ptr fault) noexcept { fault_ = std::move(fault); }
  [[nodiscard]] bool has_failed() const noexcept { return fault_ != nullptr; }
  /// Throws the fault, if there is one. Call it after io().run().
  void rethrow_fault() const;

 private:
  boost::asio::awaitable<void> watch_signals();
  boost::asio::awaitable<void> watch_guard();

  DescriptorLimit descriptors_;
  boost::asio::io_context io_{1};
  Leftovers leftovers_;
  boost::asio::posix::stream_descriptor alive_;
  Events events_;
  boost::asio::posix::stream_descriptor signals_;  ///< a signalfd
  output::OutputMux output_;
  LogRedirection log_redirection_{[this](std::string_view lines) { output_.write_stderr(lines); }};
  std::exception_ptr fault_;
};

}  // namespace acc::launcher::supervision
