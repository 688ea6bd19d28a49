#pragma once

#include "acc/rendezvous/async_client.hpp"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace acc::rendezvous::detail {

/// One connection to a store server as coroutines see it: connecting, exact reads and writes, a
/// time limit, one call at a time.
class AsyncConnection : public std::enable_shared_from_this<AsyncConnection> {
 public:
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;
  using Milliseconds = AsyncClient::Milliseconds;
  using Limit = std::optional<Milliseconds>;

  class Alarm;
  class Turn;

  explicit AsyncConnection(const boost::asio::any_io_executor& executor)
      : socket_(executor), timer_(executor) {}

  Awaitable<void> connect(std::string host, std::uint16_t port, Milliseconds timeout,
                          AsyncClient::Progress progress);
  Awaitable<void> write(std::string frame, const Alarm& alarm);
  Awaitable<void> read(char* bytes, std::size_t size, const Alarm& alarm);
  Awaitable<char> read_byte(const Alarm& alarm);
  Awaitable<std::int64_t> read_i64(const Alarm& alarm);
  Awaitable<std::string> read_bytes(const Alarm& alarm);
  /// The next byte, or nothing when none comes within `limit`; the connection stays usable.
  Awaitable<std::optional<char>> poll_byte(Limit limit);

  /// Ends what is pending, for good.
  void close() noexcept;
  [[nodiscard]] std::string own_address() const;
  [[nodiscard]] const std::string& where() const noexcept { return where_; }

 private:
  Awaitable<void> connect_once(std::string host, std::uint16_t port, Milliseconds limit);
  Awaitable<std::string> try_connect(std::string host, std::uint16_t port, Milliseconds limit);
  Awaitable<std::vector<boost::asio::ip::tcp::endpoint>> resolve(std::string host,
                                                                 std::uint16_t port);
  Awaitable<void> handshake(const Alarm& alarm);
  void check(const boost::system::error_code& error, const Alarm& alarm) const;
  [[noreturn]] void fail(const boost::system::error_code& error) const;
  void drop() noexcept;

  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  std::string where_ = "(not connected)";
  bool busy_ = false;
  bool closed_ = false;
};

/// Cancels the connection's pending operation when the time is up. One at a time.
class AsyncConnection::Alarm {
 public:
  Alarm(AsyncConnection& connection, Limit limit);
  ~Alarm();
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  [[nodiscard]] bool fired() const noexcept { return *state_ == State::fired; }

 private:
  enum class State { armed, fired, off };

  AsyncConnection& connection_;
  std::shared_ptr<State> state_ = std::make_shared<State>(State::armed);
};

/// The right to use the connection for one call. A call that does not get to `done` may have left
/// a reply unread, so it ends the connection.
class AsyncConnection::Turn {
 public:
  explicit Turn(std::shared_ptr<AsyncConnection> connection);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void done() noexcept { done_ = true; }

 private:
  std::shared_ptr<AsyncConnection> connection_;
  bool done_ = false;
};

}  // namespace acc::rendezvous::detail
