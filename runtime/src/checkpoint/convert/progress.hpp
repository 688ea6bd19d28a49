#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

namespace acc::checkpoint::conversion {

/// Hears how far a long piece of work is: "writing", "checking"; bytes. One call at a time, on any
/// thread of it.
using Progress =
    std::function<void(std::string_view what, std::uint64_t done, std::uint64_t total)>;

/// Counts for a Progress, which may be empty, and calls it some times a second.
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
