// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::rendezvous {

/// Prefix of keys that `acc::rendezvous::Server` omits from LIST_KEYS: only clients that know such
/// a name can read the key.
inline constexpr std::string_view kUnlistedKeys = "unlisted/";

/// Interface of a small shared dictionary through which ranks find each other, with the semantics
/// of PyTorch's TCPStore (torch/csrc/distributed/c10d/TCPStore.hpp, PyTorch 2.13).
///
/// Keys and values are opaque bytes: a key has at most 8,191 bytes, a value at most 8 MiB (`append`
/// may make it longer). Queues have a separate name space. An object may be used by one thread at a
/// time; `clone()` returns an object for another thread.
///
/// Every call may throw `acc::Error`: `invalid_argument` for a key or value that no store accepts
/// (nothing is changed), `timeout`, which names the missing keys, and the errors of the
/// implementation. A timeout of `Milliseconds::max()` means no timeout.
class ACC_API Store {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;
  using KeyValue = std::pair<std::string, std::string>;

  virtual ~Store() = default;

  /// Stores `value` under `key`, replacing an existing value.
  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits until `key` exists and returns its value.
  virtual std::string get(std::string_view key, Milliseconds timeout) = 0;
  /// Adds `delta` to the decimal number under `key` (0 if missing) and returns the sum, which wraps
  /// around at 64 bits. If the value is not a number, it stays unchanged: HashStore throws
  /// Error(protocol), a server closes the connection.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  /// True if all of `keys` exist now. A non-empty queue counts as an existing key, here and in
  /// `wait`.
  virtual bool check(std::span<const std::string> keys) = 0;
  /// Blocks until all of `keys` exist.
  virtual void wait(std::span<const std::string> keys, Milliseconds timeout) = 0;
  /// Stores `desired` if the current value equals `expected`; a missing key equals "". Returns
  /// `desired` after a change, else the current value. For a missing key and a non-empty `expected`
  /// it returns `expected`, as PyTorch does, so the caller cannot see that the key is missing.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;
  /// Deletes `key`; returns true if it existed. A queue of the same name stays.
  virtual bool delete_key(std::string_view key) = 0;
  /// Returns the number of keys, without queues.
  virtual std::int64_t num_keys() = 0;
  /// Returns the names of all keys in no particular order, without queues.
  /// `acc::rendezvous::Server` omits names that begin with `kUnlistedKeys`.
  virtual std::vector<std::string> list_keys() = 0;
  /// Appends to the value under `key`; creates the key if it is missing.
  virtual void append(std::string_view key, std::string_view value) = 0;
  /// Waits until all of `keys` exist and returns their values, in order.
  virtual std::vector<std::string> multi_get(std::span<const std::string> keys,
                                             Milliseconds timeout) = 0;
  /// Stores the pairs in order. It is not atomic: other clients may see the first pair before the
  /// last one is stored.
  virtual void multi_set(std::span<const KeyValue> pairs) = 0;

  /// Appends `value` to a queue and releases the client that has waited longest for it.
  virtual void queue_push(std::string_view queue, std::string_view value) = 0;
  /// Waits until it can take the first value of the queue, and returns it.
  virtual std::string queue_pop(std::string_view queue, Milliseconds timeout) = 0;
  /// Takes the first value; returns nothing if the queue is empty.
  virtual std::optional<std::string> try_queue_pop(std::string_view queue) = 0;
  virtual std::int64_t queue_len(std::string_view queue) = 0;

  /// Blocks until `world_size` callers have called it for `key`. A key is good for one barrier:
  /// later callers pass at once, and a caller whose wait timed out stays counted.
  ///
  /// The default implementation counts in `key`/num_members and signals in `key`/last_member, like
  /// PyTorch's stores that have no barrier command.
  virtual void barrier(std::string_view key, std::int64_t world_size, Milliseconds timeout);

  /// Returns a second handle to the same dictionary, for another thread.
  virtual std::unique_ptr<Store> clone() = 0;
};

}  // namespace acc::rendezvous
