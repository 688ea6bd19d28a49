// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <acc/runtime.hpp>

#include <atomic>
#include <csignal>
#include <thread>

namespace train_gpt {

/// Treats SIGUSR1 and SIGTERM as requests to save a checkpoint and to end. The signals reach ranks
/// at different moments, and may not reach all ranks, so the ranks agree after each step:
///
///     SaveRequest request;  // before any other thread starts: blocks both signals
///     request.training_begins();
///     for (...) {
///       train_step();
///       if (const int signal = request.agreed(runtime)) {
///         save();
///         return signal;  // main calls SaveRequest::end_by(signal) for SIGTERM
///       }
///     }
///
/// Before the training begins SIGTERM ends the process at once. Afterwards a rank whose peer is
/// lost gets an error from the runtime, and ranks that hang for another reason do not follow the
/// request: the launcher kills them after its --shutdown_timeout.
///
/// A thread waits for the signals instead of a signal handler, because oneDNN's matrix products
/// (2.6.3) keep values below the stack pointer, where the kernel puts a handler's frame.
class SaveRequest {
 public:
  SaveRequest();
  SaveRequest(const SaveRequest&) = delete;
  SaveRequest& operator=(const SaveRequest&) = delete;
  ~SaveRequest();

  /// Call before the first step.
  void training_begins();
  /// Call at the end of each step. Returns the signal that any rank has received, the same on all
  /// ranks; SIGTERM has precedence over SIGUSR1; 0: none. Collective.
  [[nodiscard]] int agreed(acc::Runtime& runtime) const;

  /// Ends this process with the signal's default action, so that its parent sees a death by signal.
  [[noreturn]] static void end_by(int signal);

 private:
  void watch();

  sigset_t signals_{};
  sigset_t before_{};
  std::atomic<bool> has_begun_ = false;
  std::atomic<bool> asked_to_save_ = false;
  std::atomic<bool> asked_to_end_ = false;
  std::atomic<bool> is_over_ = false;
  std::thread watcher_;
};

}  // namespace train_gpt
