// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/unordered_map.hpp>
#include <boost/unordered_set.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

namespace acc::rendezvous {

/// Transparent hash: looks up a std::string key by std::string_view without a copy.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept {
    return std::hash<std::string_view>{}(text);
  }
};
template <typename Value>
using TextMap = boost::unordered_map<std::string, Value, TextHash, std::equal_to<>>;
using TextSet = boost::unordered_set<std::string, TextHash, std::equal_to<>>;

/// The keys, queues and waiters of one store. Performs no I/O; for one thread.
///
/// A waiter is a client with an unanswered WAIT or BARRIER; a client has at most one. When its last
/// missing key appears, the waiter is removed and `Release` is called with its id, from inside the
/// call that created the key. The callback must not call back into the table.
///
/// A call that would exceed a limit throws Error(out_of_memory) and changes nothing.
class KeyTable {
 public:
  using WaiterId = std::uint64_t;
  using Release = std::function<void(WaiterId)>;
  using Values = TextMap<std::string>;

  struct Limits {
    std::size_t max_keys = SIZE_MAX;
    /// Memory of keys, values, queues and awaited names, with an estimate of the overhead.
    std::size_t max_bytes = SIZE_MAX;
  };

  explicit KeyTable(Release release) : KeyTable(std::move(release), Limits{}) {}
  KeyTable(Release release, Limits limits) : release_(std::move(release)), limits_(limits) {}

  /// A change of the keys and queues. Waiters are no part of it. The numbers are those of the
  /// server's log.
  enum class Change : std::uint8_t { set = 0, append = 1, erase = 2, push = 3, pop = 4, clear = 5 };
  /// Receives a change. `key` is a key or the name of a queue; both texts are valid during the
  /// call.
  using Receive = std::function<void(Change, std::string_view key, std::string_view value)>;
  /// Receives a change and returns its number; numbers increase.
  using Record = std::function<std::uint64_t(Change, std::string_view key, std::string_view value)>;
  /// Passes every change to `record` from now on, in the call that makes it. None: records nothing.
  void record_with(Record record);
  /// Returns the number of the last change of this key or queue, or a larger one of another change;
  /// 0 if it was not changed since `record_with`.
  [[nodiscard]] std::uint64_t last_change(std::string_view name) const;
  /// Makes a recorded change.
  void repeat(Change change, std::string_view key, std::string_view value);
  /// Passes changes on that make these keys and queues from an empty table.
  void save(const Receive& receive) const;

  /// Changes Limits::max_bytes, because jobs use the same memory. Existing entries stay, even if
  /// they exceed it.
  void limit_bytes(std::size_t max_bytes) noexcept { limits_.max_bytes = max_bytes; }
  /// Changes Limits::max_keys. Existing keys stay.
  void limit_keys(std::size_t max_keys) noexcept { limits_.max_keys = max_keys; }

  void set(std::string_view key, std::string_view value);
  /// Sets all keys or, if they do not fit, none. The check counts every key as new, so close to the
  /// limits it may refuse a call that would just fit.
  void set_all(std::span<const std::string_view> keys, std::span<const std::string_view> values);
  void append(std::string_view key, std::string_view value);
  /// See Store::compare_set. A call that stores nothing releases no waiter. The result is valid
  /// until the next call.
  std::string_view compare_set(std::string_view key, std::string_view expected,
                               std::string_view desired);
  /// See Store::add. Returns nothing, without a change, if the stored value is not a number.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta);
  bool erase(std::string_view key);
  [[nodiscard]] const std::string* find(std::string_view key) const;
  [[nodiscard]] const Values& values() const noexcept { return values_; }
  /// Memory that counts against Limits::max_bytes.
  [[nodiscard]] std::size_t bytes() const noexcept { return stored_bytes_ + awaited_bytes_; }

  /// Deletes all keys and queues. Waiters stay.
  void clear();

  void queue_push(std::string_view queue, std::string_view value);
  std::optional<std::string> queue_pop(std::string_view queue);
  [[nodiscard]] std::size_t queue_size(std::string_view queue) const;

  /// True if all names exist as keys or non-empty queues.
  [[nodiscard]] bool all_present(std::span<const std::string_view> keys) const;
  /// Returns true if all names exist. Otherwise registers `waiter`, replacing its earlier wait, and
  /// returns false. A missing name is satisfied once it has appeared, even if it is deleted again.
  bool wait(WaiterId waiter, std::span<const std::string_view> keys);
  /// Adds 1 to the decimal number under `key`. If the sum is at least `world_size`, releases all
  /// waiters on the key and returns true; otherwise registers `waiter` and returns false. Returns
  /// nothing if the value is not a number.
  std::optional<bool> barrier(WaiterId waiter, std::string_view key, std::int64_t world_size);
  /// Removes the wait of `waiter`, if any. Its arrivals at barriers stay counted.
  void cancel(WaiterId waiter);

 private:
  // Number of a registration, in increasing order: a queue releases its oldest waiter.
  using Ticket = std::uint64_t;
  struct Waiter {
    Ticket ticket = 0;
    TextSet missing;
  };

  [[nodiscard]] bool present(std::string_view key) const;
  void store(Values::iterator found, std::string_view key, std::string_view value);
  void make_room(std::size_t more_bytes, std::size_t more_keys = 0) const;
  void resize(std::size_t before, std::size_t after);
  std::optional<std::int64_t> increment(std::string_view key, std::int64_t delta);
  void enroll(WaiterId waiter, TextSet missing);
  void appeared(std::string_view key);
  void satisfy(WaiterId waiter, std::string_view key);

  void note(Change change, std::string_view key, std::string_view value);

  Release release_;
  Record record_;
  // Number of the last change of the names with the same hash; empty: nothing is recorded.
  std::vector<std::uint64_t> changes_;
  Limits limits_;
  Values values_;
  TextMap<std::deque<std::string>> queues_;  // never contains an empty queue
  std::size_t stored_bytes_ = 0;             // values_ and queues_
  std::size_t awaited_bytes_ = 0;            // waiters_ and waiting_for_
  // Each missing name of each waiter is in both tables; neither contains an empty set.
  std::unordered_map<WaiterId, Waiter> waiters_;
  TextMap<std::map<Ticket, WaiterId>> waiting_for_;
  Ticket next_ticket_ = 0;
};

}  // namespace acc::rendezvous
