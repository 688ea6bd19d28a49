// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/pipeline.hpp"
#include "acc/rendezvous/store.hpp"

#include <stop_token>

namespace acc::rendezvous {

class StoreConnection;

struct TcpStoreOptions {
  /// Timeout of a call that does not wait for a key. After it the server is considered dead.
  Store::Milliseconds call_timeout{60'000};
  /// Timeout of one attempt to connect, including the handshake.
  Store::Milliseconds attempt_timeout{10'000};
  /// A stop request makes the constructor, or a pending call of another thread, throw
  /// Error(connection) at once and closes the connection. Applies to clones, too.
  std::stop_token stop{};
};

/// A Store client of a TCPStore server, PyTorch's or `acc::rendezvous::Server`, over one connection
/// with blocking calls.
///
/// It uses the same key names as torch.distributed.TCPStore: both send "/" + key. One thread at a
/// time may use it; another thread may request the stop. Every error names the server.
///
/// An error in the middle of a call closes the connection, because replies can no longer be matched
/// to requests: later calls throw Error(connection) at once, and the failed call may or may not
/// have taken effect. A timeout of `get`, `multi_get`, `wait`, `queue_pop` or `barrier` and an
/// Error(invalid_argument) keep the connection usable.
class TcpStore : public Store {
 public:
  /// Connects and performs the handshake; repeats with exponential back-off until
  /// `connect_timeout`. `host` is an address, a name (all its addresses are tried) or "unix:/path",
  /// which ignores `port`. Throws Error(timeout) with the reason of the last failure,
  /// Error(protocol) if the server does not speak the TCPStore protocol.
  TcpStore(std::string host, std::uint16_t port, Milliseconds connect_timeout,
           TcpStoreOptions options = {});
  ~TcpStore() override;

  void set(std::string_view key, std::string_view value) override;
  /// Takes two round trips, WAIT and then GET. A GET sent together with the WAIT would close the
  /// connection to PyTorch's server without libuv if the key is missing.
  std::string get(std::string_view key, Milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  bool check(std::span<const std::string> keys) override;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool delete_key(std::string_view key) override;
  std::int64_t num_keys() override;
  std::vector<std::string> list_keys() override;
  void append(std::string_view key, std::string_view value) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys,
                                     Milliseconds timeout) override;
  /// Splits pairs that exceed the size of one request into several requests.
  void multi_set(std::span<const KeyValue> pairs) override;
  /// PyTorch's server without libuv has no queues: it closes the connection on the queue calls.
  void queue_push(std::string_view queue, std::string_view value) override;
  std::string queue_pop(std::string_view queue, Milliseconds timeout) override;
  std::optional<std::string> try_queue_pop(std::string_view queue) override;
  std::int64_t queue_len(std::string_view queue) override;
  /// Sends one BARRIER request, which counts in `key` itself.
  void barrier(std::string_view key, std::int64_t world_size, Milliseconds timeout) override;
  /// Opens a second connection.
  std::unique_ptr<Store> clone() override;

  /// Returns when the server has processed all earlier requests. `set`, `append`, `multi_set` and
  /// `queue_push` have no reply and do not wait for that.
  void ping();
  /// Returns an empty batch of requests. It uses this store's connection: same thread, and it must
  /// not outlive the store.
  [[nodiscard]] Pipeline pipeline();

  [[nodiscard]] const std::string& host() const noexcept;
  [[nodiscard]] std::uint16_t port() const noexcept;

 private:
  explicit TcpStore(std::unique_ptr<StoreConnection> connection);

  std::unique_ptr<StoreConnection> connection_;
};

}  // namespace acc::rendezvous
