// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/own_process.hpp"
#include "acc/rendezvous/tcp_store.hpp"
#include "net/socket_stream.hpp"
#include "net/stoppable_poll.hpp"
#include "store/timeouts.hpp"
#include "wire/frames.hpp"

#include <cstdint>
#include <string>

namespace acc::rendezvous {

/// Reads the parts of a TCPStore server's replies. Throws the errors of SocketStream, and
/// Error(protocol) for a length beyond the protocol's limits.
class ReplyReader {
 public:
  ReplyReader(SocketStream& stream, SocketStream::TimePoint deadline)
      : stream_(stream), deadline_(deadline) {}

  char byte();
  std::uint32_t u32();
  std::int64_t i64();
  std::string bytes();

 private:
  SocketStream& stream_;
  SocketStream::TimePoint deadline_;
};

/// The client's end of one connection to a TCPStore server: connects, performs the handshake, sends
/// requests and reads their replies. See TcpStore for the errors.
///
/// Life cycle: the constructor connects; the first error of an exchange closes the connection for
/// good, because a late reply could be taken for that of a later request.
class StoreConnection {
 public:
  using Milliseconds = Store::Milliseconds;

  StoreConnection(std::string host, std::uint16_t port, Milliseconds connect_timeout,
                  TcpStoreOptions options);

  /// Sends `frames`, calls `read` with a reader for the replies, and returns its result. Any error
  /// closes the connection.
  template <typename Read>
  auto exchange(std::string_view frames, Milliseconds timeout, Read&& read) {
    require_open();
    try {
      poll_.check();
      const auto deadline = after(timeout);
      stream_.write(frames, deadline);
      ReplyReader reader(stream_, deadline);
      return read(reader);
    } catch (const Error& error) {
      stream_.close();
      throw with_server(error);
    } catch (...) {
      stream_.close();
      throw;
    }
  }

  /// Same for one request, with the call timeout.
  template <typename Read>
  auto call(const wire::Request& request, Read&& read) {
    std::string frame;
    wire::encode(request, frame);
    return exchange(frame, options_.call_timeout, std::forward<Read>(read));
  }

  /// Sends a WAIT or BARRIER. Returns true when it is released. At the timeout it cancels the wait
  /// with CANCEL_WAIT and returns false.
  bool await(const wire::Request& request, Milliseconds timeout);

  /// Sleeps. Throws Error(connection) on a stop request.
  void pause(Milliseconds time);

  /// Opens a second connection with the same parameters.
  [[nodiscard]] std::unique_ptr<StoreConnection> clone() const;

  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  /// Name of the server for messages: "10.0.0.1:29500".
  [[nodiscard]] const std::string& where() const noexcept { return where_; }
  [[nodiscard]] Milliseconds call_timeout() const noexcept { return options_.call_timeout; }

 private:
  void connect();
  void attempt(SocketStream::TimePoint deadline);
  void handshake(SocketStream::TimePoint deadline);
  bool cancel();
  void require_open() const;
  [[nodiscard]] Error with_server(const Error& error) const;

  OwnProcess owner_;
  std::string host_;
  std::uint16_t port_;
  std::string where_;
  Milliseconds connect_timeout_;
  TcpStoreOptions options_;
  StoppablePoll poll_;
  SocketStream stream_;
  ForkHook closes_in_child_{[this] { stream_.close(); }};
};

}  // namespace acc::rendezvous
