// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/hash_store.hpp"

#include "acc/base/error.hpp"
#include "store/key_names.hpp"
#include "store/key_table.hpp"
#include "store/timeouts.hpp"
#include "wire/frames.hpp"

#include <condition_variable>
#include <mutex>

namespace acc::rendezvous {
namespace {

/// Checks a key. On a server each key gets a leading slash that counts towards the limit; the limit
/// here is therefore one byte less.
void check_key(std::string_view key) {
  wire::check_size("key", key, wire::kMaxKeyBytes - 1);
}

void check_value(std::string_view value) {
  wire::check_size("value", value, wire::kMaxValueBytes);
}

}  // namespace

/// Data shared by all clones. Threads wait on `changed`, which is notified after each call that may
/// have created a key or filled a queue; the table's own waiters are for clients of a server.
struct HashStore::State {
  std::mutex mutex;  // protects everything
  std::condition_variable changed;
  KeyTable table{[](KeyTable::WaiterId) {}};

  /// Calls `change` on the table under the mutex, then wakes all threads that wait.
  template <typename Change>
  auto update(Change&& change) {
    const std::lock_guard lock(mutex);
    changed.notify_all();
    return change(table);
  }

  /// Waits until all keys exist and returns the lock that was taken. Throws Error(timeout).
  std::unique_lock<std::mutex> await(std::span<const std::string> keys, Milliseconds timeout) {
    const std::vector<std::string_view> names(keys.begin(), keys.end());
    std::unique_lock lock(mutex);
    if (!changed.wait_until(lock, after(timeout), [&] { return table.all_present(names); })) {
      throw Error(Errc::timeout, fmt::format("timeout: no store key {} within {} ms",
                                             key_names(keys), timeout.count()));
    }
    return lock;
  }

  /// Returns the value of a key; "" if it is missing, as on a server. A wait does not exclude that:
  /// it may have been satisfied by a queue of that name.
  [[nodiscard]] std::string value(std::string_view key) const {
    const std::string* found = table.find(key);
    return found == nullptr ? std::string() : *found;
  }
};

HashStore::HashStore() : state_(std::make_shared<State>()) {}

HashStore::HashStore(std::shared_ptr<State> state) : state_(std::move(state)) {}

HashStore::~HashStore() = default;

void HashStore::set(std::string_view key, std::string_view value) {
  check_key(key);
  check_value(value);
  state_->update([&](KeyTable& table) { table.set(key, value); });
}

std::string HashStore::get(std::string_view key, Milliseconds timeout) {
  const std::string name(key);
  const auto lock = state_->await({&name, 1}, timeout);
  return state_->value(name);
}

std::int64_t HashStore::add(std::string_view key, std::int64_t delta) {
  check_key(key);
  return state_->update([&](KeyTable& table) {
    const auto sum = table.add(key, delta);
    if (!sum) {
      throw Error(Errc::protocol,
                  fmt::format("store key '{}' holds '{}', which is not a number: cannot add to it",
                              key, *table.find(key)));
    }
    return *sum;
  });
}

bool HashStore::check(std::span<const std::string> keys) {
  const std::vector<std::string_view> names(keys.begin(), keys.end());
  const std::lock_guard lock(state_->mutex);
  return state_->table.all_present(names);
}

void HashStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  state_->await(keys, timeout);
}

std::string HashStore::compare_set(std::string_view key, std::string_view expected,
                                   std::string_view desired) {
  check_key(key);
  check_value(desired);
  return state_->update(
      [&](KeyTable& table) { return std::string(table.compare_set(key, expected, desired)); });
}

bool HashStore::delete_key(std::string_view key) {
  const std::lock_guard lock(state_->mutex);
  return state_->table.erase(key);
}

std::int64_t HashStore::num_keys() {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->table.values().size());
}

std::vector<std::string> HashStore::list_keys() {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> keys;
  for (const auto& [key, value] : state_->table.values()) {
    keys.push_back(key);
  }
  return keys;
}

void HashStore::append(std::string_view key, std::string_view value) {
  check_key(key);
  check_value(value);
  state_->update([&](KeyTable& table) { table.append(key, value); });
}

std::vector<std::string> HashStore::multi_get(std::span<const std::string> keys,
                                              Milliseconds timeout) {
  const auto lock = state_->await(keys, timeout);
  std::vector<std::string> values;
  for (const std::string& key : keys) {
    values.push_back(state_->value(key));
  }
  return values;
}

void HashStore::multi_set(std::span<const KeyValue> pairs) {
  std::vector<std::string_view> keys;
  std::vector<std::string_view> values;
  for (const auto& [key, value] : pairs) {
    check_key(key);
    check_value(value);
    keys.push_back(key);
    values.push_back(value);
  }
  state_->update([&](KeyTable& table) { table.set_all(keys, values); });
}

void HashStore::queue_push(std::string_view queue, std::string_view value) {
  check_key(queue);
  check_value(value);
  state_->update([&](KeyTable& table) { table.queue_push(queue, value); });
}

std::string HashStore::queue_pop(std::string_view queue, Milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  std::optional<std::string> value;
  if (!state_->changed.wait_until(lock, after(timeout), [&] {
        value = state_->table.queue_pop(queue);
        return value.has_value();
      })) {
    throw Error(Errc::timeout, fmt::format("timeout: nothing in the store queue {} within {} ms",
                                           queue, timeout.count()));
  }
  return *value;
}

std::optional<std::string> HashStore::try_queue_pop(std::string_view queue) {
  const std::lock_guard lock(state_->mutex);
  return state_->table.queue_pop(queue);
}

std::int64_t HashStore::queue_len(std::string_view queue) {
  const std::lock_guard lock(state_->mutex);
  return static_cast<std::int64_t>(state_->table.queue_size(queue));
}

std::unique_ptr<Store> HashStore::clone() {
  return std::unique_ptr<Store>(new HashStore(state_));
}

}  // namespace acc::rendezvous
