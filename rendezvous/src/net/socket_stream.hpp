// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "net/stoppable_poll.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace acc::rendezvous {

/// A connected, non-blocking socket with a deadline on every call. Throws Error(timeout) at the
/// deadline and Error(connection) when the peer is gone or a stop was requested.
class SocketStream {
 public:
  using TimePoint = StoppablePoll::TimePoint;

  /// `poll` must outlive the stream.
  explicit SocketStream(const StoppablePoll& poll) : poll_(poll) {}

  /// Connects to `host`: a name, an address or unix:/path.
  void connect(const std::string& host, std::uint16_t port, TimePoint deadline);
  /// Replaces the socket. Bytes received from the old one and not read yet are lost.
  void open(UniqueFd fd) noexcept;
  void close() noexcept { open({}); }
  [[nodiscard]] bool is_open() const noexcept { return static_cast<bool>(fd_); }

  /// Sends all bytes. While the peer does not read, it receives what the peer sends and keeps it
  /// for `read`: otherwise two ends that both write more than the socket buffers hold would
  /// deadlock.
  void write(std::string_view bytes, TimePoint deadline);
  /// Receives what there is, at most `room` bytes, and waits for the first one. Returns their
  /// number; 0: the peer has closed the connection.
  std::size_t read_some(char* bytes, std::size_t room, TimePoint deadline);
  /// Receives exactly `count` bytes.
  void read(char* bytes, std::size_t count, TimePoint deadline);
  /// True as soon as there is something to read or the peer has closed; false at the deadline.
  [[nodiscard]] bool readable(TimePoint deadline) const;

 private:
  short ready(short events, TimePoint deadline) const;
  std::optional<std::size_t> receive_now(char* bytes, std::size_t room);
  std::size_t receive(char* bytes, std::size_t room);
  void fill_buffer();
  std::size_t take(char* bytes, std::size_t count) noexcept;

  const StoppablePoll& poll_;
  UniqueFd fd_;
  std::vector<char> buffer_;  // received and not yet read: from begin_ to end_
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace acc::rendezvous
