#pragma once

#include "acc/rendezvous/pipeline.hpp"
#include "acc/rendezvous/store.hpp"

#include <stop_token>

namespace acc::rendezvous {

class StoreConnection;

struct TcpStoreOptions {
  /// Time for a call that has nothing to wait for; beyond it the server counts as dead.
  Store::Milliseconds call_timeout{60'000};
  /// Time for one attempt to connect and shake hands.
  Store::Milliseconds attempt_timeout{10'000};
  /// A request to stop ends the constructor, or the call that another thread is in, at once with
  /// Error(connection), and the connection with it. Clones obey it too.
  std::stop_token stop{};
};

/// A Store on a TCPStore server, ours or torch's, over one blocking connection.
///
/// Sees the keys that torch.distributed.TCPStore sees (both send "/" + key). Used by one thread at
/// a time; another may request the stop. Every error names the server. After an error in the middle
/// of a call the connection is closed: later calls fail at once with Error(connection), and what
/// the call would have changed is changed or not. A timeout of `get`, `multi_get`, `wait`,
/// `queue_pop` or `barrier`, and what is refused as invalid_argument, leave it as it was.
class TcpStore : public Store {
 public:
  /// Connects and shakes hands, again and again with back-off until `connect_timeout`. `host` is an
  /// address, a name, all addresses of which are tried, or "unix:/path", where `port` has no
  /// meaning. Throws Error(timeout) with the last reason, Error(protocol) where something else
  /// listens there.
  TcpStore(std::string host, std::uint16_t port, Milliseconds connect_timeout,
           TcpStoreOptions options = {});
  ~TcpStore() override;

  void set(std::string_view key, std::string_view value) override;
  /// Two round trips: a GET sent along with the WAIT would end the connection to a torch server
  /// without libuv when the key is absent.
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
  /// Too many pairs for one request travel in several.
  void multi_set(std::span<const KeyValue> pairs) override;
  /// Like the other queue calls: not on a torch server without libuv, which ends the connection.
  void queue_push(std::string_view queue, std::string_view value) override;
  std::string queue_pop(std::string_view queue, Milliseconds timeout) override;
  std::optional<std::string> try_queue_pop(std::string_view queue) override;
  std::int64_t queue_len(std::string_view queue) override;
  /// One request, which counts in `key` itself.
  void barrier(std::string_view key, std::int64_t world_size, Milliseconds timeout) override;
  /// Opens a second connection.
  std::unique_ptr<Store> clone() override;

  /// Returns when the server has served all that was sent before; `set`, `append`, `multi_set` and
  /// `queue_push` do not wait for that.
  void ping();
  /// Requests that travel together. Belongs to this store and its thread, and must not outlive it.
  [[nodiscard]] Pipeline pipeline();

  [[nodiscard]] const std::string& host() const noexcept;
  [[nodiscard]] std::uint16_t port() const noexcept;

 private:
  explicit TcpStore(std::unique_ptr<StoreConnection> connection);

  std::unique_ptr<StoreConnection> connection_;
};

}  // namespace acc::rendezvous
