#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace acc::device {

/// A few threads that do one task together at a time. Used by one thread, which takes part.
class ThreadTeam {
 public:
  /// `size` counts the caller.
  explicit ThreadTeam(int size);

  [[nodiscard]] int size() const noexcept { return static_cast<int>(threads_.size()) + 1; }
  /// Calls task(0), …, task(parts - 1), each once, on any of the threads; returns when all are
  /// done. A task does not throw.
  void run(std::size_t parts, const std::function<void(std::size_t)>& task);

 private:
  void work(const std::stop_token& stop);
  void take_parts(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable_any begun_;
  std::condition_variable_any done_;
  const std::function<void(std::size_t)>* task_ = nullptr;  // guarded by mutex_, as are the next
  std::size_t parts_ = 0;
  std::size_t next_ = 0;
  std::size_t finished_ = 0;
  std::vector<std::jthread> threads_;
};

}  // namespace acc::device
