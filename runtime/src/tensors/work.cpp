// SPDX-License-Identifier: Apache-2.0
#include "tensors/work.hpp"

#include <utility>

namespace acc::tensors {

WorkQueue::~WorkQueue() {
  thread_.request_stop();
  ready_.notify_all();
}

void WorkQueue::push(WorkPtr work, std::function<void()> execute, bool detached) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({std::move(work), std::move(execute)});
  if (detached) {
    if (!thread_.joinable()) {
      thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    }
    ready_.notify_one();
  }
}

void WorkQueue::execute_front(std::unique_lock<std::mutex>& lock) {
  Entry entry = std::move(entries_.front());
  entries_.pop_front();
  executing_ = true;
  lock.unlock();
  try {
    entry.execute();
  } catch (...) {
    entry.work->error = std::current_exception();
  }
  lock.lock();
  executing_ = false;
  entry.work->done = true;
  finished_.notify_all();
  if (!entries_.empty()) {
    ready_.notify_one();
  }
}

bool WorkQueue::wait(const Work& work, Deadline deadline) {
  if (work.done) {
    return true;
  }
  std::unique_lock lock(mutex_);
  const auto can_go_on = [&] { return work.done || !executing_; };
  while (!work.done) {
    if (!executing_) {
      execute_front(lock);
    } else if (!deadline) {
      finished_.wait(lock, can_go_on);
    } else if (!finished_.wait_until(lock, *deadline, can_go_on)) {
      return false;
    }
  }
  return true;
}

bool WorkQueue::is_idle() const {
  const std::lock_guard lock(mutex_);
  return entries_.empty() && !executing_;
}

void WorkQueue::run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (ready_.wait(lock, stop, [this] { return !entries_.empty() && !executing_; })) {
    execute_front(lock);
  }
}

}  // namespace acc::tensors
