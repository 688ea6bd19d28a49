// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace acc::launcher::remote_launch {

/// Writes bytes to a client's standard input, in order and without blocking. Must be owned by a
/// shared_ptr. Not thread-safe: use it on the event loop's thread only.
class ControlSender : public std::enable_shared_from_this<ControlSender> {
 public:
  /// `pipe` is the write end of the client's standard input. If the client is gone, bytes are
  /// dropped.
  ControlSender(const boost::asio::any_io_executor& executor, UniqueFd pipe);

  /// Queues bytes for the client.
  void send(std::string_view bytes);
  /// True while the client has not read all queued bytes.
  [[nodiscard]] bool is_waiting() const noexcept { return writes_; }
  /// Closes the pipe, so that the client sees the end of its input.
  void close();

 private:
  boost::asio::awaitable<void> write();

  boost::asio::posix::stream_descriptor pipe_;
  std::string pending_;
  bool writes_ = false;
};

}  // namespace acc::launcher::remote_launch
