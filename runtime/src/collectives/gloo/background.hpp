// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace acc::collectives {

/// A thread that runs jobs one after the other. A job consists of computation and of blocking
/// waits, which `stop` interrupts.
class Background {
 public:
  Background() = default;
  /// Stops, and waits for the end of the running job.
  ~Background();

  /// Appends a job. After `stop` jobs still run, but their waits fail at once.
  void add(std::function<void()> job);
  /// For jobs: runs `wait`, a blocking call that returns early, at once or later, when `interrupt`
  /// has been called. Returns false, possibly without waiting, if the thread has been stopped.
  bool wait(const std::function<bool()>& wait, std::function<void()> interrupt);
  /// Makes the wait under way and all later ones fail. Any thread.
  void stop() noexcept;
  /// Returns when no job runs or is pending. Not for jobs.
  void await_idle() noexcept;

 private:
  void run();

  std::mutex mutex_;  ///< guards all members but thread_
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::function<void()> interrupt_;  ///< of the wait under way; else empty
  bool stopped_ = false;
  bool ends_ = false;
  bool running_ = false;  ///< a job is running
  std::thread thread_;    ///< started by the first job
};

}  // namespace acc::collectives
