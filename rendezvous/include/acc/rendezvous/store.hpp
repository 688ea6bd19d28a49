#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::rendezvous {

/// A small shared dictionary through which ranks find each other: the semantics of torch's
/// TCPStore, as an interface.
///
/// Keys and values are opaque bytes. One object may be used by one thread at a time; `clone()`
/// gives another thread its own. Every call throws `acc::Error`: `timeout` (which names the keys
/// waited for), `connection` when the server is gone, `protocol` when it answers nonsense.
class Store {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;

  virtual ~Store() = default;

  /// Stores `value` under `key`, replacing what is there.
  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits up to `timeout` until `key` exists and returns its value.
  virtual std::string get(std::string_view key, Milliseconds timeout) = 0;
  /// Adds `delta` to the decimal number under `key` (0 where absent) and returns the sum.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  /// True when all of `keys` exist now.
  virtual bool check(std::span<const std::string> keys) = 0;
  /// Returns when all of `keys` exist.
  virtual void wait(std::span<const std::string> keys, Milliseconds timeout) = 0;
  /// Stores `desired` if the value equals `expected` (an absent key equals ""), and returns what is
  /// then to be believed: `desired` after a change, else the value found; for an absent key and a
  /// non-empty `expected`, `expected`.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;
  /// True when `key` was there.
  virtual bool delete_key(std::string_view key) = 0;
  virtual std::int64_t num_keys() = 0;
  virtual void append(std::string_view key, std::string_view value) = 0;
  /// One value a key, in order. All keys must exist (wait first); an absent one reads as "".
  virtual std::vector<std::string> multi_get(std::span<const std::string> keys) = 0;
  virtual void multi_set(std::span<const std::pair<std::string, std::string>> pairs) = 0;
  /// A second handle on the same dictionary for another thread.
  virtual std::unique_ptr<Store> clone() = 0;
};

}  // namespace acc::rendezvous
