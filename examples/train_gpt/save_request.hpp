#pragma once

#include <acc/runtime.hpp>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

namespace train_gpt {

/// SIGUSR1 and SIGTERM as requests to save a checkpoint and end. They reach ranks at different
/// moments, and perhaps not all of them, so the ranks agree after each step:
///
///     SaveRequest request;  // before any other thread is made: blocks both signals
///     for (...) {
///       request.step_begins();
///       train_step();
///       if (const int signal = request.agreed(runtime)) {
///         save();
///         return signal;  // main calls SaveRequest::end_by(signal) where it was SIGTERM
///       }
///     }
///
/// SIGTERM is also how a launcher ends the ranks that wait for one that is lost: before the first
/// step is made it kills as ever, and later where a step takes much longer than those before.
///
/// A thread takes the signals, for a handler would be a danger: oneDNN's products (2.6.3) keep
/// values on the stack where the kernel puts a handler's frame.
class SaveRequest {
 public:
  SaveRequest();
  SaveRequest(const SaveRequest&) = delete;
  SaveRequest& operator=(const SaveRequest&) = delete;
  ~SaveRequest();

  void step_begins();
  /// The step has ended. The signal that any rank has got, the same on all of them; SIGTERM before
  /// SIGUSR1; 0: none. Collective.
  [[nodiscard]] int agreed(acc::Runtime& runtime);

  /// Ends this process as if nothing had caught the signal.
  [[noreturn]] static void end_by(int signal);

 private:
  using Clock = std::chrono::steady_clock;

  void watch();
  void wait_for_agreement(std::unique_lock<std::mutex>& lock);

  sigset_t signals_{};
  sigset_t before_{};
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool asked_to_save_ = false;
  bool asked_to_end_ = false;
  bool is_over_ = false;
  bool end_is_agreed_ = false;
  Clock::duration patience_{0};     // with the ranks, when this process is to end
  Clock::time_point step_began_{};  // the training thread's
  std::thread watcher_;
};

}  // namespace train_gpt
