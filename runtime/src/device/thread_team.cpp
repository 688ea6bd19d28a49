// SPDX-License-Identifier: Apache-2.0
#include "device/thread_team.hpp"

// The mutex is held except while a part runs. `task_` points to the caller's function, which lives
// until `run` returns, and `run` returns only after all parts are finished, so no thread can use it
// afterwards. Threads that wake up late find no part left and sleep again.
namespace acc::device {

ThreadTeam::ThreadTeam(int size) {
  for (int i = 1; i < size; ++i) {
    threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
  }
}

void ThreadTeam::run(std::size_t parts, const std::function<void(std::size_t)>& task) {
  std::unique_lock lock(mutex_);
  task_ = &task;
  parts_ = parts;
  next_ = 0;
  finished_ = 0;
  begun_.notify_all();
  take_parts(lock);
  done_.wait(lock, [this] { return finished_ == parts_; });
  task_ = nullptr;
}

void ThreadTeam::take_parts(std::unique_lock<std::mutex>& lock) {
  while (task_ != nullptr && next_ < parts_) {
    const std::size_t part = next_++;
    const auto& task = *task_;
    lock.unlock();
    task(part);
    lock.lock();
    if (++finished_ == parts_) {
      done_.notify_all();
    }
  }
}

void ThreadTeam::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (begun_.wait(lock, stop, [this] { return task_ != nullptr && next_ < parts_; })) {
    take_parts(lock);
  }
}

}  // namespace acc::device
