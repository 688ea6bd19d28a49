// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace acc::checkpoint::conversion {

/// Receives the progress of a long operation: its name ("writing", "checking"), bytes done and
/// bytes in total. Called by one thread at a time, by any thread of the operation.
using Progress =
    std::function<void(std::string_view what, std::uint64_t done, std::uint64_t total)>;

/// Counts bytes and reports them to a Progress, which may be empty, at most ten times per second.
class ProgressMeter {
 public:
  ProgressMeter(const Progress& progress, std::string what, std::uint64_t total)
      : progress_(progress), what_(std::move(what)), total_(total) {
    report();
  }
  ~ProgressMeter() { report(); }
  ProgressMeter(const ProgressMeter&) = delete;
  ProgressMeter& operator=(const ProgressMeter&) = delete;

  void add(std::uint64_t nbytes) {
    done_ += nbytes;
    const std::unique_lock lock(reporting_, std::try_to_lock);
    if (lock && std::chrono::steady_clock::now() >= next_) {
      report();
    }
  }

 private:
  void report() {
    next_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
    if (progress_) {
      progress_(what_, done_, total_);
    }
  }

  const Progress& progress_;
  std::string what_;
  std::uint64_t total_;
  std::atomic<std::uint64_t> done_ = 0;
  std::mutex reporting_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace acc::checkpoint::conversion
