// SPDX-License-Identifier: Apache-2.0
#include "monitor/report_pipe.hpp"

#include "acc/base/error.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace acc::launcher::monitor {
namespace {

// Limits of one interval. A step of 1 ms that reports 1 KiB fits.
constexpr std::size_t kBytesPerInterval = std::size_t{1} << 20;
constexpr std::size_t kLinesPerInterval = 1024;

}  // namespace

ReportPipe::ReportPipe(const boost::asio::any_io_executor& executor)
    : reading_end_(executor), bytes_left_(kBytesPerInterval), lines_left_(kLinesPerInterval) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    throw Error(Errc::process,
                std::string("cannot make a pipe for reports: ") + std::strerror(errno));
  }
  reading_end_.assign(ends[0]);
  writing_end_.reset(ends[1]);
}

void ReportPipe::read() {
  reading_end_.async_read_some(
      boost::asio::buffer(buffer_.data(), std::min(buffer_.size(), bytes_left_)),
      [self = shared_from_this()](const boost::system::error_code& error, std::size_t count) {
        if (error || !self->reading_end_.is_open()) {
          return;  // the worker has closed it, or this end is closed
        }
        const auto before = self->lines_.num_reports();
        const auto refused_before = self->lines_.num_refused();
        self->lines_.take({self->buffer_.data(), count}, self->lines_left_);
        if (self->lines_.num_reports() != before) {
          self->reported_at_ = std::chrono::steady_clock::now();
        }
        const auto num_lines = static_cast<std::size_t>(
            self->lines_.num_reports() - before + self->lines_.num_refused() - refused_before);
        self->lines_left_ -= std::min(self->lines_left_, num_lines);
        self->bytes_left_ -= count;
        self->is_paused_ = self->bytes_left_ == 0;
        if (!self->is_paused_) {
          self->read();
        }
      });
}

void ReportPipe::sample() {
  bytes_left_ = kBytesPerInterval;
  lines_left_ = kLinesPerInterval;
  if (std::exchange(is_paused_, false) && reading_end_.is_open()) {
    read();
  }
}

void ReportPipe::close() {
  boost::system::error_code ignored;
  reading_end_.close(ignored);
}

}  // namespace acc::launcher::monitor
