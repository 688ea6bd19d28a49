#pragma once

#include "acc/base/unique_fd.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <string>
#include <string_view>

namespace acc::launcher {

/// Writes whole blocks to a terminal, pipe, socket or file without ever blocking the event loop on
/// a reader that has stopped: the rest waits here, and writers wait for `room()`. A reader that has
/// gone away closes the sink. The loop's thread only.
class OutputSink {
 public:
  /// `fd` stays the caller's. Its file status flags are left alone, since other processes share
  /// them.
  OutputSink(const boost::asio::any_io_executor& executor, int fd);

  [[nodiscard]] bool is_terminal() const noexcept { return is_terminal_; }

  /// True when nothing can be written any more: the reader has gone, or there never was a file.
  [[nodiscard]] bool is_closed() const noexcept { return closed_; }

  /// Completes when little enough is waiting for one more block to be written.
  boost::asio::awaitable<void> room() { return below(kEnough); }
  /// Completes when nothing is waiting.
  boost::asio::awaitable<void> flushed() { return below(1); }

  /// Never tears a block apart: blocks go out one after the other.
  void write(std::string_view block);

 private:
  static constexpr std::size_t kEnough = std::size_t{256} << 10;
  enum class Kind { polled, socket, file };

  boost::asio::awaitable<void> below(std::size_t limit);
  boost::asio::awaitable<void> write_when_ready();
  void write_now();
  [[nodiscard]] ssize_t write_some() const;

  Kind kind_ = Kind::file;
  bool is_terminal_ = false;
  bool closed_ = false;
  bool waiting_ = false;
  std::string pending_;
  std::size_t written_ = 0;  ///< of pending_
  boost::asio::posix::stream_descriptor out_;
  boost::asio::steady_timer progress_;  ///< never expires; cancelled when something was written
};

}  // namespace acc::launcher
