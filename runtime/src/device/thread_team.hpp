// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace acc::device {

/// A fixed set of threads that work on one task at a time. Used by one thread, which takes part in
/// the work. Threads take the parts of a task from a common counter.
class ThreadTeam {
 public:
  /// `size`: number of threads, including the caller's.
  explicit ThreadTeam(int size);

  [[nodiscard]] int size() const noexcept { return static_cast<int>(threads_.size()) + 1; }
  /// Calls task(0), …, task(parts - 1), each once, on any of the threads; returns when all are
  /// done. A task does not throw.
  void run(std::size_t parts, const std::function<void(std::size_t)>& task);

 private:
  void work(const std::stop_token& stop);
  /// Runs parts until none is left. Releases `lock` during each part.
  void take_parts(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable_any begun_;
  std::condition_variable_any done_;
  // Guarded by mutex_:
  const std::function<void(std::size_t)>* task_ = nullptr;  ///< null between tasks
  std::size_t parts_ = 0;
  std::size_t next_ = 0;      ///< the next part to take
  std::size_t finished_ = 0;  ///< parts completed
  std::vector<std::jthread> threads_;
};

}  // namespace acc::device
