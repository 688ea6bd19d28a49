#pragma once

#include "acc/base/unique_fd.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace acc::launcher {

/// What goes into a client's standard input, in order, as soon as it takes it. The loop's thread
/// only; to be held by shared_ptr.
class ControlSender : public std::enable_shared_from_this<ControlSender> {
 public:
  /// `pipe`: its write end; a client that has gone is no error.
  ControlSender(const boost::asio::any_io_executor& executor, UniqueFd pipe);

  void send(std::string_view bytes);
  /// The client has not taken yet what was to go out.
  [[nodiscard]] bool is_waiting() const noexcept { return writes_; }
  /// The client sees the end of its input.
  void close();

 private:
  boost::asio::awaitable<void> write();

  boost::asio::posix::stream_descriptor pipe_;
  std::string pending_;
  bool writes_ = false;
};

}  // namespace acc::launcher
