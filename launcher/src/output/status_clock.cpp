// SPDX-License-Identifier: Apache-2.0
#include "output/status_clock.hpp"

#include "acc/base/variables.hpp"

#include <chrono>
#include <string_view>
#include <utility>

namespace acc::launcher::output {
StatusClock::StatusClock(const boost::asio::any_io_executor& executor,
                         std::shared_ptr<OutputSink> sink, pid_t foreground_group)
    : sink_(std::move(sink)),
      foreground_group_(foreground_group),
      can_draw_(sink_->is_terminal() && has_cursor()),
      clock_(executor) {}

void StatusClock::set(const JobStatus& status) {
  if (can_draw_) {
    status_ = status;
    tick();
  }
}

void StatusClock::tick() {
  const auto now = std::chrono::steady_clock::now();
  sink_->show_status(status_text(*status_, now), foreground_group_);
  clock_.expires_at(now + std::chrono::seconds(1));  // cancels the wait of the previous tick
  // A handler that is already queued runs even if the timer is cancelled or destroyed.
  clock_.async_wait([this, lives = std::weak_ptr(lives_)](const boost::system::error_code& error) {
    if (!error && !lives.expired() && status_) {
      tick();
    }
  });
}

void StatusClock::hide() {
  if (status_) {
    sink_->show_status("", foreground_group_);
  }
}

void StatusClock::end() {
  hide();
  status_.reset();
  clock_.cancel();
}

}  // namespace acc::launcher::output
