// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "monitor/report_lines.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <array>
#include <chrono>
#include <memory>
#include <optional>

namespace acc::launcher::monitor {

/// The pipe to which one worker writes reports. The writing end never blocks: a report that finds
/// the pipe full fails with EAGAIN. The reading end takes a limited number of bytes and lines
/// between two calls of `sample`, so that a worker that floods it does not keep the launcher busy.
class ReportPipe : public std::enable_shared_from_this<ReportPipe> {
 public:
  /// Throws Error(process) if the process has no descriptors left.
  explicit ReportPipe(const boost::asio::any_io_executor& executor);

  /// Starts to read.
  void start() { read(); }
  /// The end for the worker. The caller closes it when the worker is started.
  [[nodiscard]] const UniqueFd& writing_end() const noexcept { return writing_end_; }
  void close_writing_end() { writing_end_.reset(); }
  /// Begins the next interval.
  void sample();
  [[nodiscard]] const TrainingMetrics& metrics() const noexcept { return lines_.metrics(); }
  /// Time of the last report; empty: none.
  [[nodiscard]] std::optional<std::chrono::steady_clock::time_point> reported_at() const noexcept {
    return reported_at_;
  }
  void close();

 private:
  void read();

  UniqueFd writing_end_;
  boost::asio::posix::stream_descriptor reading_end_;
  std::array<char, std::size_t{64} << 10> buffer_{};
  ReportLines lines_;
  std::optional<std::chrono::steady_clock::time_point> reported_at_;
  std::size_t bytes_left_;  // of this interval
  std::size_t lines_left_;
  bool is_paused_ = false;  // until the next interval
};

}  // namespace acc::launcher::monitor
