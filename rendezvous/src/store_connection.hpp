#pragma once

#include "acc/base/error.hpp"
#include "acc/rendezvous/tcp_store.hpp"
#include "reply_reader.hpp"
#include "socket_stream.hpp"
#include "stoppable_poll.hpp"
#include "timeouts.hpp"
#include "wire/frames.hpp"

#include <string>

namespace acc::rendezvous {

/// The client's end of one connection to a TCPStore server: connects, shakes hands, sends requests
/// and reads their answers. See TcpStore for the errors.
class StoreConnection {
 public:
  using Milliseconds = Store::Milliseconds;

  StoreConnection(std::string host, std::uint16_t port, Milliseconds connect_timeout,
                  TcpStoreOptions options);

  /// Sends `frames` and gives what `read` makes of the answers. Any error closes the connection.
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

  /// The same for one request, within the call timeout.
  template <typename Read>
  auto call(const wire::Request& request, Read&& read) {
    std::string frame;
    wire::encode(request, frame);
    return exchange(frame, options_.call_timeout, std::forward<Read>(read));
  }

  /// Sends a WAIT or BARRIER. True when it is released; at the timeout it is taken back.
  bool await(const wire::Request& request, Milliseconds timeout);

  /// Lets time pass, but no longer than until a stop is requested.
  void pause(Milliseconds time);

  /// A second one like this.
  [[nodiscard]] std::unique_ptr<StoreConnection> clone() const;

  [[nodiscard]] const std::string& host() const noexcept { return host_; }
  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  /// The server for messages: "10.0.0.1:29500".
  [[nodiscard]] const std::string& where() const noexcept { return where_; }
  [[nodiscard]] Milliseconds call_timeout() const noexcept { return options_.call_timeout; }

 private:
  void connect();
  void attempt(SocketStream::TimePoint deadline);
  void handshake(SocketStream::TimePoint deadline);
  bool cancel();
  void require_open() const;
  [[nodiscard]] Error with_server(const Error& error) const;

  std::string host_;
  std::uint16_t port_;
  std::string where_;
  Milliseconds connect_timeout_;
  TcpStoreOptions options_;
  StoppablePoll poll_;
  SocketStream stream_;
};

}  // namespace acc::rendezvous
