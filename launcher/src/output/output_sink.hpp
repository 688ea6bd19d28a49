// SPDX-License-Identifier: Apache-2.0
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

namespace acc::launcher::output {

/// Writes blocks of text to a terminal, pipe, socket or file without blocking the event loop if the
/// reader is slow. Bytes that cannot be written yet are kept; writers wait for `room()` before they
/// produce more. After a write error the sink is lost and drops everything. Use it in the event
/// loop's thread only, and hold it by shared_ptr, since its coroutines share the ownership.
class OutputSink : public std::enable_shared_from_this<OutputSink> {
 public:
  /// Called once when the sink is lost, with the errno value: EPIPE if the reader has gone, ENOSPC,
  /// EIO, …
  using OnLost = std::function<void(int error)>;

  /// `fd` remains owned by the caller. Its file status flags (O_NONBLOCK) are not changed, because
  /// other processes share them. If `fd` is not open, all output is dropped.
  OutputSink(const boost::asio::any_io_executor& executor, int fd, OnLost on_lost);

  [[nodiscard]] bool is_terminal() const noexcept { return is_terminal_; }

  /// True when the reader has gone.
  [[nodiscard]] bool is_closed() const noexcept { return is_closed_; }

  /// Starts to watch for the reader's end, so that it is noticed even while nothing is written.
  /// Call it before the first write. A regular file has no reader, and is not affected.
  void watch();
  /// Ends `watch`, whose pending operation would keep the event loop running.
  void stop_watching();

  /// Completes when few enough bytes are pending to write another block.
  boost::asio::awaitable<void> room() { return below(kEnough); }
  /// Completes when no bytes are pending.
  boost::asio::awaitable<void> flushed() { return below(1); }

  /// True if bytes are pending.
  [[nodiscard]] bool is_waiting() const noexcept { return !pending_.empty(); }

  /// Writes a block. Blocks are never interleaved.
  void write(std::string_view block);

  /// Sets the last line of a terminal, truncated to its width; an empty text removes it. The line
  /// is hidden while a process group other than `group` has the terminal; group 0 shows it always.
  void show_status(const std::string& text, pid_t group);

  /// Closes the sink and drops pending bytes.
  void close();

 private:
  static constexpr std::size_t kEnough = std::size_t{256} << 10;  ///< bytes
  /// How the descriptor is written: `polled`, reopened with O_NONBLOCK; `shared`, blocking, after
  /// poll() only; `socket`, with MSG_DONTWAIT; `file`, blocking, since files have no reader.
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
  std::size_t written_ = 0;  ///< number of bytes at the start of `pending_` that are written
  boost::asio::posix::stream_descriptor out_;
  boost::asio::steady_timer progress_;  ///< never expires; cancelled after each write, as an event
};

}  // namespace acc::launcher::output
