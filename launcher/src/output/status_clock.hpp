// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "output/output_sink.hpp"
#include "output/status_line.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>

#include <memory>
#include <optional>

namespace acc::launcher::output {

/// Updates the status line of a terminal once per second while a status is set. Use it in the event
/// loop's thread only.
class StatusClock {
 public:
  /// Shows nothing if `sink` is not a terminal, or if TERM is "dumb", or while a process group
  /// other than `foreground_group` has the terminal (0: any group may have it).
  StatusClock(const boost::asio::any_io_executor& executor, std::shared_ptr<OutputSink> sink,
              pid_t foreground_group);

  void set(const JobStatus& status);
  /// Hides the line until the next second or `set`.
  void hide();
  /// Removes the line and stops the timer.
  void end();

 private:
  void tick();

  std::shared_ptr<OutputSink> sink_;
  pid_t foreground_group_;
  bool can_draw_;
  std::optional<JobStatus> status_;
  boost::asio::steady_timer clock_;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  ///< lets handlers detect the end
};

}  // namespace acc::launcher::output
