#include "acc/rendezvous/hash_store.hpp"

#include "acc/base/error.hpp"
#include "decimal.hpp"
#include "key_names.hpp"
#include "timeouts.hpp"
#include "wire/frames.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <unordered_map>

namespace acc::rendezvous {
namespace {

/// Checks a key. On a server each key gets a leading slash that counts towards the limit; the limit
/// here is therefore one byte less.
std::string checked_key(std::string_view key) {
  wire::check_size("key", key, wire::kMaxKeyBytes - 1);
  return std::string(key);
}

std::string checked_value(std::string_view value) {
  wire::check_size("value", value, wire::kMaxValueBytes);
  return std::string(value);
}

}  // namespace

/// Data shared by all clones. The mutex protects everything; `changed` is notified after each
/// change that can satisfy a wait.
struct HashStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<std::string, std::string> values;
  std::unordered_map<std::string, std::deque<std::string>> queues;  // none is empty

  [[nodiscard]] bool holds_all(std::span<const std::string> keys) const {
    return std::ranges::all_of(
        keys, [this](const auto& key) { return values.contains(key) || queues.contains(key); });
  }

  /// Returns the value of a key; "" if it is missing, as on a server. A wait does not exclude that:
  /// it may have been satisfied by a queue of that name.
  [[nodiscard]] std::string value(const std::string& key) const {
    const auto found = values.find(key);
    return found == values.end() ? std::string() : found->second;
  }

  void put(std::string key, std::string value) {
    values.insert_or_assign(std::move(key), std::move(value));
    changed.notify_all();
  }

  /// Waits until all keys exist. Throws Error(timeout).
  void await(std::unique_lock<std::mutex>& lock, std::span<const std::string> keys,
             Milliseconds timeout) {
    if (!changed.wait_until(lock, after(timeout), [&] { return holds_all(keys); })) {
      throw Error(Errc::timeout,
                  fmt::format("timeout: no store key {} within {} ms", key_names(keys),
                              timeout.count()));
    }
  }

  /// Takes the first value. `queue` must not be empty.
  std::string pop(const std::string& queue) {
    const auto found = queues.find(queue);
    std::string value = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) {
      queues.erase(found);
    }
    return value;
  }
};

HashStore::HashStore() : state_(std::make_shared<State>()) {}

HashStore::HashStore(std::shared_ptr<State> state) : state_(std::move(state)) {}

HashStore::~HashStore() = default;

void HashStore::set(std::string_view key, std::string_view value) {
  std::string name = checked_key(key);
  std::string copy = checked_value(value);
  const std::lock_guard lock(state_->mutex);
  state_->put(std::move(name), std::move(copy));
}

std::string HashStore::get(std::string_view key, Milliseconds timeout) {
  const std::string name(key);
  std::unique_lock lock(state_->mutex);
  state_->await(lock, {&name, 1}, timeout);
  return state_->value(name);
}

std::int64_t HashStore::add(std::string_view key, std::int64_t delta) {
  std::string name = checked_key(key);
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->values.find(name);
  const auto before = found == state_->values.end() ? 0 : leading_integer(found->second);
  if (!before) {
    throw Error(Errc::protocol,
                fmt::format("store key '{}' holds '{}', which is not a number: cannot add to it",
                            key, found->second));
  }
  const std::int64_t sum = wrapping_add(*before, delta);
  state_->put(std::move(name), std::to_string(sum));
  return sum;
}

bool HashStore::check(std::span<const std::string> keys) {
  const std::lock_guard lock(state_->mutex);
  return state_->holds_all(keys);
}

void HashStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  state_->await(lock, keys, timeout);
}

std::string HashStore::compare_set(std::string_view key, std::string_view expected,
                                   std::string_view desired) {
  std::string name = checked_key(key);
  std::string copy = checked_value(desired);
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->values.find(name);
  if (found == state_->values.end() ? !expected.empty() : found->second != expected) {
    return found == state_->values.end() ? std::string(expected) : found->second;
  }
  state_->put(std::move(name), std::move(copy));
  return std::string(desired);
}

bool HashStore::delete_key(std::string_view key) {
  const std::lock_guard lock(state_->mutex);
  return state_->values.erase(std::string(key)) > 0;
}

std::int64_t HashStore::num_keys() {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->values.size());
}

std::vector<std::string> HashStore::list_keys() {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> keys;
  for (const auto& [key, value] : state_->values) {
    keys.push_back(key);
  }
  return keys;
}

void HashStore::append(std::string_view key, std::string_view value) {
  const std::string name = checked_key(key);
  wire::check_size("value", value, wire::kMaxValueBytes);
  const std::lock_guard lock(state_->mutex);
  state_->values[name].append(value);
  state_->changed.notify_all();
}

std::vector<std::string> HashStore::multi_get(std::span<const std::string> keys,
                                              Milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  state_->await(lock, keys, timeout);
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    values.push_back(state_->value(key));
  }
  return values;
}

void HashStore::multi_set(std::span<const KeyValue> pairs) {
  // Checks all pairs first, so that a refused call changes nothing.
  for (const auto& [key, value] : pairs) {
    wire::check_size("key", key, wire::kMaxKeyBytes - 1);
    wire::check_size("value", value, wire::kMaxValueBytes);
  }
  const std::lock_guard lock(state_->mutex);
  for (const auto& [key, value] : pairs) {
    state_->put(key, value);
  }
}

void HashStore::queue_push(std::string_view queue, std::string_view value) {
  const std::string name = checked_key(queue);
  std::string copy = checked_value(value);
  const std::lock_guard lock(state_->mutex);
  state_->queues[name].push_back(std::move(copy));
  state_->changed.notify_all();
}

std::string HashStore::queue_pop(std::string_view queue, Milliseconds timeout) {
  const std::string name(queue);
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_until(lock, after(timeout),
                                  [&] { return state_->queues.contains(name); })) {
    throw Error(Errc::timeout,
                fmt::format("timeout: nothing in the store queue {} within {} ms", name,
                            timeout.count()));
  }
  return state_->pop(name);
}

std::optional<std::string> HashStore::try_queue_pop(std::string_view queue) {
  const std::string name(queue);
  const std::lock_guard lock(state_->mutex);
  return state_->queues.contains(name) ? std::optional(state_->pop(name)) : std::nullopt;
}

std::int64_t HashStore::queue_len(std::string_view queue) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->queues.find(std::string(queue));
  return found == state_->queues.end() ? 0 : static_cast<std::int64_t>(found->second.size());
}

std::unique_ptr<Store> HashStore::clone() {
  return std::unique_ptr<Store>(new HashStore(state_));
}

}  // namespace acc::rendezvous
