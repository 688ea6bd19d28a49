#include "acc/rendezvous/async_client.hpp"

#include "acc/base/error.hpp"
#include "async_connection.hpp"
#include "wire/frames.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace acc::rendezvous {

namespace asio = boost::asio;
using detail::AsyncConnection;
using wire::Opcode;
using wire::Request;

namespace {

using Alarm = AsyncConnection::Alarm;
using Turn = AsyncConnection::Turn;
using Limit = std::optional<AsyncClient::Milliseconds>;
// By value in each coroutine: a call may outlive the client.
using Shared = std::shared_ptr<AsyncConnection>;

// Frames are built outside of coroutines: g++ 12 rejects an initializer list of strings inside of
// one ("array used as initializer") and may destroy a temporary of a co_await condition twice.
std::string frame(Opcode opcode, std::vector<std::string> keys,
                  std::vector<std::string> values = {}, std::int64_t number = 0) {
  for (std::string& key : keys) {
    key.insert(key.begin(), '/');  // as torch's client does
  }
  std::string bytes;
  wire::encode({opcode, std::move(keys), std::move(values), number}, bytes);
  return bytes;
}

std::string frame(Opcode opcode, std::string key, std::int64_t number = 0) {
  return frame(opcode, std::vector<std::string>{std::move(key)}, {}, number);
}

std::string acknowledged_set(std::string key, std::string value) {
  std::string bytes = frame(Opcode::set, {std::move(key)}, {std::move(value)});
  return bytes + frame(Opcode::ping, std::vector<std::string>{});
}

asio::awaitable<void> call_connect(Shared connection, std::string host, std::uint16_t port,
                                   AsyncClient::Milliseconds timeout,
                                   AsyncClient::Progress progress) {
  co_await connection->connect(std::move(host), port, timeout, std::move(progress));
}

asio::awaitable<void> send_set(Shared connection, std::string bytes) {
  Turn turn(connection);
  const Alarm alarm(*connection, AsyncClient::kCallTimeout);
  co_await connection->write(std::move(bytes), alarm);
  std::array<char, 4> echo;
  co_await connection->read(echo.data(), echo.size(), alarm);
  turn.done();
}

asio::awaitable<std::int64_t> call_i64(Shared connection, std::string bytes) {
  Turn turn(connection);
  const Alarm alarm(*connection, AsyncClient::kCallTimeout);
  co_await connection->write(std::move(bytes), alarm);
  const auto reply = co_await connection->read_i64(alarm);
  turn.done();
  co_return reply;
}

asio::awaitable<std::vector<std::string>> call_values(Shared connection, std::string bytes,
                                                      std::size_t count) {
  Turn turn(connection);
  const Alarm alarm(*connection, AsyncClient::kCallTimeout);
  co_await connection->write(std::move(bytes), alarm);
  std::vector<std::string> values;
  for (std::size_t i = 0; i < count; ++i) {
    values.push_back(co_await connection->read_bytes(alarm));
  }
  turn.done();
  co_return values;
}

asio::awaitable<std::string> call_value(Shared connection, std::string bytes) {
  auto values = co_await call_values(std::move(connection), std::move(bytes), 1);
  co_return std::move(values.front());
}

asio::awaitable<bool> call_check(Shared connection, std::string bytes) {
  Turn turn(connection);
  const Alarm alarm(*connection, AsyncClient::kCallTimeout);
  co_await connection->write(std::move(bytes), alarm);
  const bool present = co_await connection->read_byte(alarm) == 0;
  turn.done();
  co_return present;
}

asio::awaitable<bool> call_delete(Shared connection, std::string bytes) {
  co_return co_await call_i64(std::move(connection), std::move(bytes)) > 0;
}

/// After a WAIT or BARRIER that was not released in time. True when the release crossed the cancel.
asio::awaitable<bool> cancel_wait(AsyncConnection& connection) {
  const Alarm alarm(connection, AsyncClient::kCallTimeout);
  co_await connection.write(std::string(1, static_cast<char>(Opcode::cancel_wait)), alarm);
  const bool released = co_await connection.read_byte(alarm) == wire::kReleased;
  if (released) {
    co_await connection.read_byte(alarm);
  }
  co_return released;
}

/// Sends a WAIT or BARRIER; false when it is not released within `limit`.
asio::awaitable<bool> await_release(Shared connection, std::string bytes, Limit limit) {
  Turn turn(connection);
  {
    const Alarm alarm(*connection, AsyncClient::kCallTimeout);
    co_await connection->write(std::move(bytes), alarm);
  }
  const auto byte = co_await connection->poll_byte(limit);
  if (byte && *byte != wire::kReleased) {
    throw Error(Errc::protocol, fmt::format("store at {}: a wait was answered with {}",
                                            connection->where(), int{*byte}));
  }
  bool released = byte.has_value();
  if (!released) {
    released = co_await cancel_wait(*connection);
  }
  turn.done();
  co_return released;
}

asio::awaitable<std::string> wait_and_get(Shared connection, std::string key, std::string wait,
                                          std::string get, Limit limit) {
  const bool present = co_await await_release(connection, std::move(wait), limit);
  if (!present) {
    throw Error(Errc::timeout, fmt::format("no key {} at the store {} within {} ms", key,
                                           connection->where(), limit->count()));
  }
  co_return co_await call_value(connection, std::move(get));
}

}  // namespace

AsyncClient::AsyncClient(asio::any_io_executor executor)
    : connection_(std::make_shared<AsyncConnection>(executor)) {}

AsyncClient::~AsyncClient() {
  close();
}

AsyncClient& AsyncClient::operator=(AsyncClient&& other) noexcept {
  if (this != &other) {
    close();
    connection_ = std::move(other.connection_);
  }
  return *this;
}

void AsyncClient::close() noexcept {
  if (connection_) {
    connection_->close();
  }
}

std::string AsyncClient::own_address() const {
  return connection_->own_address();
}

const std::string& AsyncClient::where() const noexcept {
  return connection_->where();
}

asio::awaitable<void> AsyncClient::connect(std::string host, std::uint16_t port,
                                           Milliseconds timeout, Progress progress) {
  return call_connect(connection_, std::move(host), port, timeout, std::move(progress));
}

asio::awaitable<void> AsyncClient::set(std::string key, std::string value) {
  return send_set(connection_, acknowledged_set(std::move(key), std::move(value)));
}

asio::awaitable<std::string> AsyncClient::get(std::string key, Limit timeout) {
  std::string wait_frame = frame(Opcode::wait, key);
  std::string get_frame = frame(Opcode::get, key);
  return wait_and_get(connection_, std::move(key), std::move(wait_frame), std::move(get_frame),
                      timeout);
}

asio::awaitable<std::int64_t> AsyncClient::add(std::string key, std::int64_t delta) {
  return call_i64(connection_, frame(Opcode::add, std::move(key), delta));
}

asio::awaitable<std::string> AsyncClient::compare_set(std::string key, std::string expected,
                                                      std::string desired) {
  return call_value(connection_, frame(Opcode::compare_set, {std::move(key)},
                                       {std::move(expected), std::move(desired)}));
}

asio::awaitable<bool> AsyncClient::check(std::vector<std::string> keys) {
  return call_check(connection_, frame(Opcode::check, std::move(keys)));
}

asio::awaitable<bool> AsyncClient::delete_key(std::string key) {
  return call_delete(connection_, frame(Opcode::delete_key, std::move(key)));
}

asio::awaitable<std::vector<std::string>> AsyncClient::multi_get(std::vector<std::string> keys) {
  const std::size_t count = keys.size();
  return call_values(connection_, frame(Opcode::multi_get, std::move(keys)), count);
}

asio::awaitable<bool> AsyncClient::wait(std::vector<std::string> keys, Limit timeout) {
  return await_release(connection_, frame(Opcode::wait, std::move(keys)), timeout);
}

asio::awaitable<bool> AsyncClient::barrier(std::string key, std::int64_t world_size,
                                           Limit timeout) {
  return await_release(connection_, frame(Opcode::barrier, std::move(key), world_size), timeout);
}

}  // namespace acc::rendezvous
