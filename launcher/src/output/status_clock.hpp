#pragma once

#include "output/output_sink.hpp"
#include "output/status_line.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>

#include <memory>
#include <optional>

namespace acc::launcher {

/// Keeps the status line of a terminal up to date, second by second, while there is a status. The
/// loop's thread only.
class StatusClock {
 public:
  /// Shows nothing where `sink` is no terminal, or a dumb one, or another process group than
  /// `foreground_group` has it (0: any may).
  StatusClock(const boost::asio::any_io_executor& executor, std::shared_ptr<OutputSink> sink,
              pid_t foreground_group);

  void set(const JobStatus& status);
  /// Until the next second or `set`.
  void hide();
  /// Removes the line; the loop has nothing more to do for it.
  void end();

 private:
  void tick();

  std::shared_ptr<OutputSink> sink_;
  pid_t foreground_group_;
  bool can_draw_;
  std::optional<JobStatus> status_;
  boost::asio::steady_timer clock_;
  std::shared_ptr<bool> lives_ = std::make_shared<bool>(true);  ///< for what the loop still holds
};

}  // namespace acc::launcher
