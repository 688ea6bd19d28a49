// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace acc::tensors {

using Deadline = std::optional<std::chrono::steady_clock::time_point>;

/// One issued call. `error` and `source` may be read once `done` is true.
struct Work {
  explicit Work(std::chrono::milliseconds limit) : timeout(limit) {}
  virtual ~Work() = default;

  std::chrono::milliseconds timeout;  ///< limit for each wait for a peer
  std::atomic<bool> done = false;
  std::exception_ptr error;
  int source = -1;  ///< group rank that sent the message; only for receives
};
using WorkPtr = std::shared_ptr<Work>;

/// Calls that are executed in issue order, one at a time, by whichever thread has time: a thread
/// that waits for a call executes the calls up to it; calls that nobody waits for are executed by a
/// thread of the queue, which the first such call starts. Thread-safe.
class WorkQueue {
 public:
  WorkQueue() = default;
  /// No call may be executing or waited for any more, except on the queue's own thread.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// Adds a call. If `detached`, the caller will not wait for it right away.
  void push(WorkPtr work, std::function<void()> execute, bool detached);
  /// Returns when `work` is done; false if the deadline has passed before.
  bool wait(const Work& work, Deadline deadline);
  /// True if no call is waiting or executing.
  [[nodiscard]] bool is_idle() const;

 private:
  struct Entry {
    WorkPtr work;
    std::function<void()> execute;
  };
  void execute_front(std::unique_lock<std::mutex>& lock);
  void run(const std::stop_token& stop);

  mutable std::mutex mutex_;              ///< guards entries_, executing_ and thread_
  std::condition_variable_any finished_;  ///< for waiting callers
  std::condition_variable_any ready_;     ///< for the thread
  std::deque<Entry> entries_;
  bool executing_ = false;
  std::jthread thread_;
};

}  // namespace acc::tensors
