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

/// Lets a table of strings be asked with a view, without making a string of it.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept {
    return std::hash<std::string_view>{}(text);
  }
};
template <typename Value>
using TextMap = boost::unordered_map<std::string, Value, TextHash, std::equal_to<>>;
using TextSet = boost::unordered_set<std::string, TextHash, std::equal_to<>>;

/// The keys, queues and waiters of one store: a pure object, for one thread.
///
/// A waiter is a client with an unanswered WAIT or BARRIER, at most one a client. When it is
/// satisfied it is forgotten, and `Release` is called with its id from inside the call that
/// satisfied it; the callback must not call back into the table.
///
/// What would break a limit changes nothing and throws Error(out_of_memory).
class KeyTable {
 public:
  using WaiterId = std::uint64_t;
  using Release = std::function<void(WaiterId)>;
  using Values = TextMap<std::string>;

  struct Limits {
    std::size_t max_keys = SIZE_MAX;
    /// Keys, values, queues and the names that are waited for, with what it takes to keep them.
    std::size_t max_bytes = SIZE_MAX;
  };

  explicit KeyTable(Release release) : KeyTable(std::move(release), Limits{}) {}
  KeyTable(Release release, Limits limits) : release_(std::move(release)), limits_(limits) {}

  /// Another limit of bytes from now on: others use the same memory. What is there stays.
  void limit_bytes(std::size_t max_bytes) noexcept { limits_.max_bytes = max_bytes; }

  void set(std::string_view key, std::string_view value);
  /// All of them or, where they do not fit, none. Near the limits each one counts as new.
  void set_all(std::span<const std::string_view> keys, std::span<const std::string_view> values);
  void append(std::string_view key, std::string_view value);
  /// See Store::compare_set. A call that stores nothing releases nobody. The result is good until
  /// the next call.
  std::string_view compare_set(std::string_view key, std::string_view expected,
                               std::string_view desired);
  /// Nothing (and no change) where the stored text is not a number.
  std::optional<std::int64_t> add(std::string_view key, std::int64_t delta);
  bool erase(std::string_view key);
  [[nodiscard]] const std::string* find(std::string_view key) const;
  [[nodiscard]] const Values& values() const noexcept { return values_; }
  /// What Limits::max_bytes limits.
  [[nodiscard]] std::size_t bytes() const noexcept { return stored_bytes_ + awaited_bytes_; }

  /// Forgets all keys and queues. Waiters stay.
  void clear();

  void queue_push(std::string_view queue, std::string_view value);
  std::optional<std::string> queue_pop(std::string_view queue);
  [[nodiscard]] std::size_t queue_size(std::string_view queue) const;

  /// Keys and non-empty queues count as present.
  [[nodiscard]] bool all_present(std::span<const std::string_view> keys) const;
  /// True when nothing is missing; else registers `waiter`, in place of what it waited for before.
  /// Each missing name counts once, when it appears, even if it is deleted again.
  bool wait(WaiterId waiter, std::span<const std::string_view> keys);
  /// Counts one arrival in the decimal number under `key`; true, and all waiters on the key are
  /// released, when that makes `world_size`; else registers `waiter`. Nothing: not a number.
  std::optional<bool> barrier(WaiterId waiter, std::string_view key, std::int64_t world_size);
  /// Forgets what `waiter` waits for, if anything. Barrier arrivals stay counted.
  void cancel(WaiterId waiter);

 private:
  // Order of registration: a queue wakes its oldest waiter.
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

  Release release_;
  Limits limits_;
  Values values_;
  TextMap<std::deque<std::string>> queues_;
  std::size_t stored_bytes_ = 0;
  std::size_t awaited_bytes_ = 0;
  std::unordered_map<WaiterId, Waiter> waiters_;
  TextMap<std::map<Ticket, WaiterId>> waiting_for_;
  Ticket next_ticket_ = 0;
};

}  // namespace acc::rendezvous
