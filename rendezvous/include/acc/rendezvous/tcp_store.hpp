#pragma once

#include "acc/rendezvous/store.hpp"

namespace acc::rendezvous {

/// A Store on a TCPStore server, ours or torch's, over one blocking connection.
///
/// Sees the keys that torch.distributed.TCPStore sees (both send "/" + key). Every error names the
/// server's host:port. After an error in the middle of a call the connection is of no more use:
/// later calls fail at once with Error(connection). A timed-out `get` or `wait` does not count as
/// such.
class TcpStore : public Store {
 public:
  /// Time for a call that has nothing to wait for; beyond it the server counts as dead.
  static constexpr Milliseconds kCallTimeout{60'000};

  /// Connects and shakes hands, again and again with back-off until `connect_timeout`. Throws
  /// Error(timeout) with the last reason, Error(protocol) where something else listens there.
  TcpStore(std::string host, std::uint16_t port, Milliseconds connect_timeout,
           Milliseconds call_timeout = kCallTimeout);
  ~TcpStore() override;

  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, Milliseconds timeout) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  bool check(std::span<const std::string> keys) override;
  void wait(std::span<const std::string> keys, Milliseconds timeout) override;
  std::string compare_set(std::string_view key, std::string_view expected,
                          std::string_view desired) override;
  bool delete_key(std::string_view key) override;
  std::int64_t num_keys() override;
  void append(std::string_view key, std::string_view value) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys) override;
  void multi_set(std::span<const std::pair<std::string, std::string>> pairs) override;
  /// Opens a second connection.
  std::unique_ptr<Store> clone() override;

  [[nodiscard]] const std::string& host() const noexcept;
  [[nodiscard]] std::uint16_t port() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace acc::rendezvous
