// SPDX-License-Identifier: Apache-2.0
#include "collectives/gloo/background.hpp"

#include <utility>

namespace acc::collectives {

Background::~Background() {
  stop();
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Background::add(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

bool Background::wait(const std::function<bool()>& wait, std::function<void()> interrupt) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) {
      return false;
    }
    interrupt_ = std::move(interrupt);
  }
  // Clears `interrupt_` also if the wait throws: its target may be destroyed then.
  struct Clear {
    Background& background;
    ~Clear() {
      const std::lock_guard lock(background.mutex_);
      background.interrupt_ = nullptr;
    }
  } const clear{*this};
  return wait();
}

void Background::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  if (interrupt_) {
    interrupt_();
  }
}

void Background::await_idle() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return jobs_.empty() && !running_; });
}

void Background::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    running_ = true;
    lock.unlock();
    job();
    job = nullptr;  // destroys what it owns before the next `await_idle` returns
    lock.lock();
    running_ = false;
    changed_.notify_all();
  }
}

}  // namespace acc::collectives
