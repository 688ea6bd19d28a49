#pragma once

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

/// Keys that begin so are for those who know their names: a server of ours does not list them.
inline constexpr std::string_view kUnlistedKeys = "unlisted/";

/// A small shared dictionary through which ranks find each other: the semantics of torch's
/// TCPStore, as an interface.
///
/// Keys and values are opaque bytes, a key of at most 8,191 and a value of at most 8 MiB;
/// `append` may make it longer. Queues have names of their own. One object may be used by one
/// thread at a time; `clone()` gives another thread its own.
///
/// Every call throws `acc::Error`: `invalid_argument` for what no store takes, with nothing
/// changed; `timeout`, which names the keys waited for; and those of the kind of store. A timeout
/// of `Milliseconds::max()` never passes.
class Store {
 public:
  using Clock = std::chrono::steady_clock;
  using Milliseconds = std::chrono::milliseconds;
  using KeyValue = std::pair<std::string, std::string>;

  virtual ~Store() = default;

  /// Stores `value` under `key`, replacing what is there.
  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits until `key` exists and returns its value.
  virtual std::string get(std::string_view key, Milliseconds timeout) = 0;
  /// Adds `delta` to the decimal number under `key` (0 where absent) and returns the sum, which
  /// wraps around in 64 bits. What is no number is left alone and refused: by a HashStore with
  /// Error(protocol), by a server with the end of the connection.
  virtual std::int64_t add(std::string_view key, std::int64_t delta) = 0;
  /// True when all of `keys` exist now. A queue that is not empty counts as a key, here and in
  /// `wait`.
  virtual bool check(std::span<const std::string> keys) = 0;
  /// Returns when all of `keys` exist.
  virtual void wait(std::span<const std::string> keys, Milliseconds timeout) = 0;
  /// Stores `desired` if the value equals `expected` (an absent key equals ""), and returns what is
  /// then to be believed: `desired` after a change, else the value found; for an absent key and a
  /// non-empty `expected`, `expected`.
  virtual std::string compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired) = 0;
  /// True when `key` was there. A queue of that name stays.
  virtual bool delete_key(std::string_view key) = 0;
  /// Queues are not counted.
  virtual std::int64_t num_keys() = 0;
  /// The names of all keys, in no order, without the queues. Our server leaves out those that
  /// begin with `kUnlistedKeys`.
  virtual std::vector<std::string> list_keys() = 0;
  virtual void append(std::string_view key, std::string_view value) = 0;
  /// Waits until all of `keys` exist and returns their values, in order.
  virtual std::vector<std::string> multi_get(std::span<const std::string> keys,
                                             Milliseconds timeout) = 0;
  /// Stores the pairs in order; others may see the first before the last is there.
  virtual void multi_set(std::span<const KeyValue> pairs) = 0;

  /// Puts `value` at the end of a queue, and lets the one who waits longest go on.
  virtual void queue_push(std::string_view queue, std::string_view value) = 0;
  /// Waits until the queue has a value that no other takes, and takes it.
  virtual std::string queue_pop(std::string_view queue, Milliseconds timeout) = 0;
  /// Takes the first value; nothing where the queue is empty.
  virtual std::optional<std::string> try_queue_pop(std::string_view queue) = 0;
  virtual std::int64_t queue_len(std::string_view queue) = 0;

  /// Returns when `world_size` callers have come to the barrier `key`. Good for one use: who comes
  /// later passes, and who gave up at a timeout stays counted.
  ///
  /// By default it counts in `key`/num_members and tells in `key`/last_member, as torch's stores
  /// without a barrier of their own do.
  virtual void barrier(std::string_view key, std::int64_t world_size, Milliseconds timeout);

  /// A second handle on the same dictionary for another thread.
  virtual std::unique_ptr<Store> clone() = 0;
};

}  // namespace acc::rendezvous
