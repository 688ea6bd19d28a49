#pragma once

#include "acc/base/unique_fd.hpp"
#include "output/status_line.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace acc::launcher {

/// Writes whole blocks to a terminal, pipe, socket or file without ever blocking the event loop on
/// a reader that has stopped: the rest waits here, and writers wait for `room()`. Once something
/// could not be written the sink is lost: nothing is written any more. The loop's thread only; to
/// be held by shared_ptr.
class OutputSink : public std::enable_shared_from_this<OutputSink> {
 public:
  /// Gets the error number, once. EPIPE: the reader has gone. Others: ENOSPC, EIO.
  using OnLost = std::function<void(int error)>;

  /// `fd` stays the caller's. Its file status flags are left alone, since other processes share
  /// them. A launcher that was started without this descriptor drops what is written.
  OutputSink(const boost::asio::any_io_executor& executor, int fd, OnLost on_lost);

  [[nodiscard]] bool is_terminal() const noexcept { return is_terminal_; }

  /// True when the reader has gone.
  [[nodiscard]] bool is_closed() const noexcept { return is_closed_; }

  /// Notices from now on that the reader has gone though nothing is written. To be called first; a
  /// file has no reader.
  void watch();
  /// Ends `watch`, which keeps the loop busy.
  void stop_watching();

  /// Completes when little enough is waiting for one more block to be written.
  boost::asio::awaitable<void> room() { return below(kEnough); }
  /// Completes when nothing is waiting.
  boost::asio::awaitable<void> flushed() { return below(1); }

  [[nodiscard]] bool is_waiting() const noexcept { return !pending_.empty(); }

  /// Never tears a block apart: blocks go out one after the other.
  void write(std::string_view block);

  /// A terminal's last line, cut to its width; empty: none. Not shown while another process group
  /// than `group` has the terminal; 0: any may.
  void show_status(const std::string& text, pid_t group);

  /// Drops what has not been written.
  void close();

 private:
  static constexpr std::size_t kEnough = std::size_t{256} << 10;
  enum class Kind { polled, shared, socket, file };

  void open(int fd);
  boost::asio::awaitable<void> below(std::size_t limit);
  void look_for_reader();
  boost::asio::awaitable<void> write_when_ready();
  void put(std::string_view bytes);
  std::size_t write_now(std::string_view bytes);
  [[nodiscard]] ssize_t write_some(std::string_view bytes);
  void lose(int error);

  Kind kind_ = Kind::file;
  bool is_terminal_ = false;
  bool is_lost_ = false;
  bool is_closed_ = false;
  OnLost on_lost_;
  StatusLine status_;
  std::string pending_;
  std::size_t written_ = 0;  ///< of pending_
  boost::asio::posix::stream_descriptor out_;
  boost::asio::steady_timer progress_;  ///< never expires; cancelled when something was written
};

}  // namespace acc::launcher
