#include "async_connection.hpp"

#include "acc/base/error.hpp"
#include "backoff.hpp"
#include "tune_socket.hpp"
#include "wire/frames.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace acc::rendezvous::detail {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = AsyncClient::Milliseconds;

constexpr auto kResult = asio::as_tuple(asio::use_awaitable);
// A single attempt may take this long; a lost SYN should not eat the whole connect time.
constexpr Milliseconds kAttemptTimeout{10'000};

std::string hello(std::uint32_t nonce) {
  std::string frames;
  wire::encode({.opcode = wire::Opcode::validate, .number = wire::kMagic}, frames);
  wire::encode({.opcode = wire::Opcode::ping, .number = nonce}, frames);
  return frames;
}

double seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

AsyncConnection::Alarm::Alarm(AsyncConnection& connection, Limit limit) : connection_(connection) {
  if (!limit) {
    return;
  }
  connection.timer_.expires_after(*limit);
  connection.timer_.async_wait(
      [keep = connection.shared_from_this(), state = state_](const error_code& error) {
        if (!error && *state == State::armed) {
          *state = State::fired;
          error_code ignored;
          keep->socket_.cancel(ignored);
        }
      });
}

AsyncConnection::Alarm::~Alarm() {
  *state_ = State::off;
  connection_.timer_.cancel();
}

AsyncConnection::Turn::Turn(std::shared_ptr<AsyncConnection> connection)
    : connection_(std::move(connection)) {
  if (std::exchange(connection_->busy_, true)) {
    throw Error(Errc::internal, "two calls at once on one store client");
  }
}

AsyncConnection::Turn::~Turn() {
  connection_->busy_ = false;
  if (!done_) {
    connection_->drop();
  }
}

void AsyncConnection::drop() noexcept {
  error_code ignored;
  socket_.close(ignored);
}

void AsyncConnection::close() noexcept {
  closed_ = true;
  drop();
  timer_.cancel();
}

void AsyncConnection::check(const error_code& error, const Alarm& alarm) const {
  if (alarm.fired()) {
    throw Error(Errc::timeout, fmt::format("store at {}: no answer in time", where_));
  }
  if (error) {
    fail(error);
  }
}

void AsyncConnection::fail(const error_code& error) const {
  const std::string reason = closed_                     ? "the connection was closed here"
                             : error == asio::error::eof ? "the server closed the connection"
                                                         : error.message();
  throw Error(Errc::connection, fmt::format("store at {}: {}", where_, reason));
}

std::string AsyncConnection::own_address() const {
  error_code error;
  const auto own = socket_.local_endpoint(error);
  if (error) {
    return "";
  }
  const auto other = socket_.remote_endpoint(error);
  return error || own.address() == other.address() ? "" : own.address().to_string();
}

asio::awaitable<void> AsyncConnection::write(std::string frame, const Alarm& alarm) {
  const auto [error, count] = co_await asio::async_write(socket_, asio::buffer(frame), kResult);
  check(error, alarm);
}

asio::awaitable<void> AsyncConnection::read(char* bytes, std::size_t size, const Alarm& alarm) {
  const auto [error, count] =
      co_await asio::async_read(socket_, asio::buffer(bytes, size), kResult);
  check(error, alarm);
}

asio::awaitable<char> AsyncConnection::read_byte(const Alarm& alarm) {
  char byte = 0;
  co_await read(&byte, 1, alarm);
  co_return byte;
}

asio::awaitable<std::int64_t> AsyncConnection::read_i64(const Alarm& alarm) {
  std::array<char, 8> bytes;
  co_await read(bytes.data(), bytes.size(), alarm);
  co_return wire::get_i64(bytes.data());
}

asio::awaitable<std::string> AsyncConnection::read_bytes(const Alarm& alarm) {
  const auto length = static_cast<std::uint64_t>(co_await read_i64(alarm));
  if (length > wire::kMaxFrameBytes) {
    throw Error(Errc::protocol,
                fmt::format("store at {}: a value of {} bytes was announced", where_, length));
  }
  std::string bytes(length, '\0');
  co_await read(bytes.data(), bytes.size(), alarm);
  co_return bytes;
}

asio::awaitable<std::optional<char>> AsyncConnection::poll_byte(Limit limit) {
  const Alarm alarm(*this, limit);
  char byte = 0;
  const auto [error, count] = co_await asio::async_read(socket_, asio::buffer(&byte, 1), kResult);
  if (!error) {
    co_return byte;
  }
  if (!alarm.fired()) {
    fail(error);
  }
  co_return std::nullopt;
}

asio::awaitable<std::vector<tcp::endpoint>> AsyncConnection::resolve(std::string host,
                                                                     std::uint16_t port) {
  error_code not_numeric;
  std::vector<tcp::endpoint> endpoints;
  if (const auto address = asio::ip::make_address(host, not_numeric); !not_numeric) {
    endpoints.emplace_back(address, port);
    co_return endpoints;
  }
  tcp::resolver resolver(socket_.get_executor());
  const auto [error, found] = co_await resolver.async_resolve(host, std::to_string(port), kResult);
  if (error) {
    fail(error);
  }
  endpoints.assign(found.begin(), found.end());
  co_return endpoints;
}

asio::awaitable<void> AsyncConnection::connect_once(std::string host, std::uint16_t port,
                                                    Milliseconds limit) {
  const auto endpoints = co_await resolve(std::move(host), port);
  if (closed_) {  // by the user, in the meantime; connecting would open the socket again
    fail(asio::error::operation_aborted);
  }
  const Alarm alarm(*this, limit);
  const auto [error, endpoint] = co_await asio::async_connect(socket_, endpoints, kResult);
  check(error, alarm);
  tune_socket(socket_.native_handle());
  co_await handshake(alarm);
}

asio::awaitable<void> AsyncConnection::handshake(const Alarm& alarm) {
  const auto nonce = static_cast<std::uint32_t>(getpid());
  co_await write(hello(nonce), alarm);
  std::array<char, 4> echo;
  co_await read(echo.data(), echo.size(), alarm);
  if (wire::get_u32(echo.data()) != nonce) {
    throw Error(Errc::protocol,
                fmt::format("{} is no TCPStore server: it answered a ping wrongly", where_));
  }
}

/// One attempt: the reason why it failed, or "".
asio::awaitable<std::string> AsyncConnection::try_connect(std::string host, std::uint16_t port,
                                                          Milliseconds limit) {
  try {
    co_await connect_once(std::move(host), port, limit);
    co_return "";
  } catch (const Error& error) {
    drop();
    if (error.code() == Errc::protocol || closed_) {
      throw;
    }
    co_return error.what();
  }
}

asio::awaitable<void> AsyncConnection::connect(std::string host, std::uint16_t port,
                                               Milliseconds timeout,
                                               AsyncClient::Progress progress) {
  Turn turn(shared_from_this());
  where_ = fmt::format("{}:{}", host, port);
  const auto start = Clock::now();
  auto next_report = start;
  Backoff backoff;
  while (true) {
    const auto left = timeout - std::chrono::floor<Milliseconds>(Clock::now() - start);
    const std::string reason =
        co_await try_connect(host, port, std::clamp(left, Milliseconds(1), kAttemptTimeout));
    if (reason.empty()) {
      turn.done();
      co_return;
    }
    const auto now = Clock::now();
    const auto pause = backoff.next();
    if (now + pause >= start + timeout) {
      throw Error(Errc::timeout,
                  fmt::format("no answer within {:g} s from the {}", seconds(timeout), reason));
    }
    if (progress && now >= next_report) {
      next_report = now + AsyncClient::kProgressInterval;
      progress(fmt::format("waiting for the store at {}, {:.0f} s of {:.0f} s", where_,
                           seconds(now - start), seconds(timeout)));
    }
    timer_.expires_after(pause);
    co_await timer_.async_wait(kResult);
    if (closed_) {
      fail(asio::error::operation_aborted);
    }
  }
}

}  // namespace acc::rendezvous::detail
