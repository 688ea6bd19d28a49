#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace acc::rendezvous {

namespace detail {
class AsyncConnection;
}

/// A store client for coroutines on an io_context: what the launcher needs of `Store`.
///
/// One call at a time (a second one throws Error(internal)); open another client to wait for
/// something in the background. All errors are acc::Error and name the server's host:port:
/// `connection` when the server is gone or `close` was called, `timeout`, `protocol`. After an
/// error in a call the connection is closed; `wait` and `barrier` that return false are no error.
class AsyncClient {
 public:
  template <typename T>
  using Awaitable = boost::asio::awaitable<T>;
  using Milliseconds = std::chrono::milliseconds;
  /// Told, as one line of text, what is being waited for and how long already.
  using Progress = std::function<void(const std::string&)>;

  /// Time for a call that has nothing to wait for.
  static constexpr Milliseconds kCallTimeout{60'000};
  /// How often `Progress` is told, after the first time at once.
  static constexpr Milliseconds kProgressInterval{10'000};

  explicit AsyncClient(boost::asio::any_io_executor executor);
  /// Closes. A pending call ends with Error(connection).
  ~AsyncClient();
  AsyncClient(AsyncClient&&) noexcept = default;
  AsyncClient& operator=(AsyncClient&&) noexcept;

  /// Tries again with back-off until the server answers. Throws Error(timeout) with the last
  /// reason.
  Awaitable<void> connect(std::string host, std::uint16_t port, Milliseconds timeout,
                          Progress progress = {});

  /// Returns when the server has stored it.
  Awaitable<void> set(std::string key, std::string value);
  /// Waits for the key; no `timeout`: without limit. Throws Error(timeout).
  Awaitable<std::string> get(std::string key, std::optional<Milliseconds> timeout = std::nullopt);
  Awaitable<std::int64_t> add(std::string key, std::int64_t delta);
  /// As Store::compare_set.
  Awaitable<std::string> compare_set(std::string key, std::string expected, std::string desired);
  Awaitable<bool> check(std::vector<std::string> keys);
  Awaitable<bool> delete_key(std::string key);
  /// One value a key, "" for an absent one.
  Awaitable<std::vector<std::string>> multi_get(std::vector<std::string> keys);
  /// True when all keys exist, false when they do not within `timeout`.
  Awaitable<bool> wait(std::vector<std::string> keys,
                       std::optional<Milliseconds> timeout = std::nullopt);
  /// Counts this arrival, then waits until `world_size` have arrived at `key`; false at the
  /// timeout (the arrival stays counted). Everybody is released by the same request, so the one
  /// who holds the server may stop it then. A key serves once.
  Awaitable<bool> barrier(std::string key, std::int64_t world_size,
                          std::optional<Milliseconds> timeout = std::nullopt);

  /// "host:port" of the server, once `connect` was called.
  [[nodiscard]] const std::string& where() const noexcept;
  /// The address that this machine has for the server; "" where both are the same machine, or
  /// nothing is connected.
  [[nodiscard]] std::string own_address() const;
  void close() noexcept;

 private:
  std::shared_ptr<detail::AsyncConnection> connection_;  // shared with pending calls
};

}  // namespace acc::rendezvous
