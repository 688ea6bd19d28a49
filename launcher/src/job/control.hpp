// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "remote_launch/control_message.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <string>
#include <string_view>

namespace acc::launcher::job {

/// Returns this process's standard input and replaces it by /dev/null, which the workers inherit.
/// Throws Error(process).
UniqueFd take_standard_input();

/// Receives control messages from the acclaunch that started this launcher. Not thread-safe: use it
/// on the event loop's thread only.
class Control {
 public:
  struct Events {
    /// Called for each Signal, ForceStop and End.
    std::function<void(const remote_launch::control::Message&)> on_message;
    /// Called once, as the last call, when the connection ends: at the end of the input, after a
    /// timeout, or after an invalid line.
    std::function<void(const std::string& reason)> on_broken;
  };

  /// Starts to listen on `input`.
  Control(const boost::asio::any_io_executor& executor, UniqueFd input, Events events,
          std::chrono::milliseconds silence_limit = remote_launch::control::kSilenceLimit);

  /// Returns the message that the connection is broken, with the sender's host.
  [[nodiscard]] std::string broken_connection() const;

  /// Stops listening. No further events follow.
  void close();

 private:
  boost::asio::awaitable<void> listen();
  bool read_once();
  bool take_lines();
  bool take(std::string_view line);
  bool is_broken(const std::string& how);
  void wait_for_silence();

  boost::asio::posix::stream_descriptor input_;
  boost::asio::steady_timer silence_;
  std::chrono::milliseconds silence_limit_;
  Events events_;
  std::string host_;
  std::string pending_;  ///< incomplete line
};

}  // namespace acc::launcher::job
