// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

namespace acc::device {

/// Counts the bytes of a device's memory in use, in total and per purpose. Any thread.
class MemoryLedger {
 public:
  /// Adds memory used for `what`; negative: freed.
  void add(std::int64_t nbytes, std::string_view what) {
    const std::lock_guard lock(mutex_);
    allocated_ += nbytes;
    peak_ = std::max(peak_, allocated_);
    holders_[std::string(what)] += nbytes;
  }
  void add_host(std::int64_t nbytes) {
    const std::lock_guard lock(mutex_);
    host_ += nbytes;
  }
  /// Sets `reserved` to `allocated`; an owner with a cache replaces it.
  [[nodiscard]] MemoryMetrics figures() const {
    const std::lock_guard lock(mutex_);
    MemoryMetrics figures{.allocated = allocated_,
                          .peak_allocated = peak_,
                          .reserved = allocated_,
                          .host_allocated = host_,
                          .holders = {}};
    // Purposes whose memory has been freed completely stay in the map with 0 bytes.
    for (const auto& [what, nbytes] : holders_) {
      if (nbytes > 0) {
        figures.holders.push_back({what, nbytes});
      }
    }
    std::stable_sort(figures.holders.begin(), figures.holders.end(),
                     [](const auto& a, const auto& b) { return a.nbytes > b.nbytes; });
    return figures;
  }

 private:
  mutable std::mutex mutex_;
  std::int64_t allocated_ = 0;
  std::int64_t peak_ = 0;
  std::int64_t host_ = 0;
  std::map<std::string, std::int64_t> holders_;
};

}  // namespace acc::device
