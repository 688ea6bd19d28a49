// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"
#include "acc/base/log.hpp"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace acc {

/// Formats a size in decimal units, like Accelerate: "537 MB", "1.23 GB".
ACC_API std::string in_decimal_units(std::uint64_t nbytes);

/// The lines about an operation that moves bytes, and the times at which they are printed. Nothing
/// is printed about an operation that takes less than two seconds. Times count from its start.
class ProgressLines {
 public:
  using Time = std::chrono::steady_clock::duration;

  /// what: beginning of each line ("saving /data/step_100"). `total`: bytes, 0 if they are not
  /// known. `overwrites`: the lines are drawn over each other on a terminal, five times per second;
  /// otherwise one line is printed every ten seconds.
  ProgressLines(std::string what, std::uint64_t total, bool overwrites)
      : what_(std::move(what)), total_(total), overwrites_(overwrites) {}

  /// Returns true if a line is due after `elapsed`.
  [[nodiscard]] bool is_due(Time elapsed) const { return elapsed >= next_; }
  /// Returns the line after `elapsed`, and waits for the next interval: "saving x: 1.2 GB of 4.8
  /// GB, 25 %, 300 MB/s, 12 s left".
  ACC_API std::string next(Time elapsed, std::uint64_t done);
  /// Returns the line at the end: empty if none was printed before, or if bytes are missing because
  /// the operation failed.
  ACC_API std::string last(Time elapsed, std::uint64_t done) const;
  [[nodiscard]] bool has_printed() const { return has_printed_; }

 private:
  std::string what_;
  std::uint64_t total_;
  bool overwrites_;
  bool has_printed_ = false;
  Time next_ = std::chrono::seconds(2);
};

enum class ShowProgress : bool { no, yes };

/// Counts the bytes of an operation and prints its progress to stderr: on a terminal one line that
/// is redrawn and disappears at the end, elsewhere and in JSON format a notice every ten seconds.
class ProgressMeter {
 public:
  /// Prints nothing with ShowProgress::no, or if the level of the component is above info.
  ACC_API ProgressMeter(ShowProgress shows, Component component, std::string what,
                        std::uint64_t total_nbytes);
  ACC_API ~ProgressMeter();
  ProgressMeter(const ProgressMeter&) = delete;
  ProgressMeter& operator=(const ProgressMeter&) = delete;

  /// Counts bytes, and prints a line if one is due. Thread-safe; costs a look at the clock.
  ACC_API void add(std::uint64_t nbytes);
  [[nodiscard]] std::uint64_t done() const noexcept { return done_; }

 private:
  [[nodiscard]] ProgressLines::Time elapsed() const {
    return std::chrono::steady_clock::now() - begin_;
  }

  bool shows_;
  bool overwrites_;
  Component component_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::atomic<std::uint64_t> done_ = 0;
  std::mutex printing_;
  ProgressLines lines_;  ///< guarded by printing_
};

}  // namespace acc
