#pragma once

#include "acc/base/unique_fd.hpp"
#include "start/control_message.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <functional>
#include <string>
#include <string_view>

namespace acc::launcher {

/// This process's standard input; /dev/null takes its place, for the workers.
UniqueFd take_standard_input();

/// What the starter of this launcher says. The loop's thread only.
class Control {
 public:
  struct Events {
    /// Signal, Insist or End.
    std::function<void(const control::Message&)> on_message;
    /// Once, and nothing after it: the end of the input, silence, or what is no message.
    std::function<void(const std::string& reason)> on_broken;
  };

  Control(const boost::asio::any_io_executor& executor, UniqueFd input, Events events,
          std::chrono::milliseconds silence_limit = control::kSilenceLimit);

  /// Who speaks, as part of a sentence; and that this is over.
  [[nodiscard]] std::string broken_connection() const;

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
  std::string pending_;  ///< the beginning of a line
};

}  // namespace acc::launcher
