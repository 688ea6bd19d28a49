#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace acc::rendezvous {

/// The keys, queues and waiters of one store: a pure object, for one thread.
///
/// A waiter is a client with an unanswered WAIT or BARRIER, at most one a client. When it is
/// satisfied it is forgotten, and `Release` is called with its id from inside the call that
/// satisfied it; the callback must not call back into the table.
class KeyTable {
 public:
  using WaiterId = std::uint64_t;
  using Release = std::function<void(WaiterId)>;
  using Values = std::unordered_map<std::string, std::string>;

  explicit KeyTable(Release release) : release_(std::move(release)) {}

  void set(const std::string& key, std::string value);
  void append(const std::string& key, const std::string& value);
  /// See Store::compare_set. A call that stores nothing releases nobody.
  std::string compare_set(const std::string& key, std::string expected, std::string desired);
  /// Nothing (and no change) where the stored text is not a number.
  std::optional<std::int64_t> add(const std::string& key, std::int64_t delta);
  bool erase(const std::string& key) { return values_.erase(key) > 0; }
  [[nodiscard]] const std::string* find(const std::string& key) const;
  [[nodiscard]] const Values& values() const noexcept { return values_; }

  /// Forgets all keys and queues. Waiters stay.
  void clear();

  void queue_push(const std::string& queue, std::string value);
  std::optional<std::string> queue_pop(const std::string& queue);
  [[nodiscard]] std::size_t queue_size(const std::string& queue) const;

  /// Keys and non-empty queues count as present.
  [[nodiscard]] bool all_present(std::span<const std::string> keys) const;
  /// True when nothing is missing; else registers `waiter`, in place of what it waited for before.
  /// Each missing name counts once, when it appears, even if it is deleted again.
  bool wait(WaiterId waiter, std::span<const std::string> keys);
  /// Counts one arrival in the decimal number under `key`; true, and all waiters on the key are
  /// released, when that makes `world_size`; else registers `waiter`. Nothing: not a number.
  std::optional<bool> barrier(WaiterId waiter, const std::string& key, std::int64_t world_size);
  /// Forgets what `waiter` waits for, if anything. Barrier arrivals stay counted.
  void cancel(WaiterId waiter);

 private:
  // Order of registration: a queue wakes its oldest waiter.
  using Ticket = std::uint64_t;
  struct Waiter {
    Ticket ticket = 0;
    std::unordered_set<std::string> missing;
  };

  [[nodiscard]] bool present(const std::string& key) const;
  std::optional<std::int64_t> increment(const std::string& key, std::int64_t delta);
  void enroll(WaiterId waiter, std::unordered_set<std::string> missing);
  void appeared(const std::string& key);
  void satisfy(WaiterId waiter, const std::string& key);

  Release release_;
  Values values_;
  std::unordered_map<std::string, std::deque<std::string>> queues_;
  std::unordered_map<WaiterId, Waiter> waiters_;
  std::unordered_map<std::string, std::map<Ticket, WaiterId>> waiting_for_;
  Ticket next_ticket_ = 0;
};

}  // namespace acc::rendezvous
