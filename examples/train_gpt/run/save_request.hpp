// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <acc/runtime.hpp>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

namespace train_gpt {

/// Treats SIGUSR1 and SIGTERM as requests to save a checkpoint and to end. The signals reach ranks
/// at different moments, and may not reach all ranks, so the ranks agree after each step:
///
///     SaveRequest request;  // before any other thread starts: blocks both signals
///     for (...) {
///       request.step_begins();
///       train_step();
///       if (const int signal = request.agreed(runtime)) {
///         save();
///         return signal;  // main calls SaveRequest::end_by(signal) for SIGTERM
///       }
///     }
///
/// A launcher also sends SIGTERM to ranks that hang because a peer is lost. So SIGTERM ends the
/// process at once before the first step has ended, and later if a step takes much longer than the
/// steps before it.
///
/// A thread waits for the signals instead of a signal handler, because oneDNN's matrix products
/// (2.6.3) keep values below the stack pointer, where the kernel puts a handler's frame.
class SaveRequest {
 public:
  SaveRequest();
  SaveRequest(const SaveRequest&) = delete;
  SaveRequest& operator=(const SaveRequest&) = delete;
  ~SaveRequest();

  /// Call at the beginning of each step.
  void step_begins();
  /// Call at the end of each step. Returns the signal that any rank has received, the same on all
  /// ranks; SIGTERM has precedence over SIGUSR1; 0: none. Collective.
  [[nodiscard]] int agreed(acc::Runtime& runtime);

  /// Ends this process with the signal's default action, so that its parent sees a death by signal.
  [[noreturn]] static void end_by(int signal);

 private:
  using Clock = std::chrono::steady_clock;

  void watch();
  void wait_for_agreement(std::unique_lock<std::mutex>& lock);

  sigset_t signals_{};
  sigset_t before_{};
  std::mutex mutex_;  // guards the members up to patience_
  std::condition_variable changed_;
  bool asked_to_save_ = false;
  bool asked_to_end_ = false;
  bool is_over_ = false;
  bool end_is_agreed_ = false;
  Clock::duration patience_{0};     // time after SIGTERM within which the ranks must agree
  Clock::time_point step_began_{};  // used by the training thread only
  std::thread watcher_;
};

}  // namespace train_gpt
