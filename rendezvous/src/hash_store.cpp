#include "acc/rendezvous/hash_store.hpp"

#include "acc/base/error.hpp"
#include "decimal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <unordered_map>

namespace acc::rendezvous {

struct HashStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<std::string, std::string> values;

  [[nodiscard]] bool holds_all(std::span<const std::string> keys) const {
    return std::ranges::all_of(keys, [this](const auto& key) { return values.contains(key); });
  }
};

HashStore::HashStore() : state_(std::make_shared<State>()) {}

HashStore::HashStore(std::shared_ptr<State> state) : state_(std::move(state)) {}

HashStore::~HashStore() = default;

void HashStore::set(std::string_view key, std::string_view value) {
  const std::lock_guard lock(state_->mutex);
  state_->values.insert_or_assign(std::string(key), std::string(value));
  state_->changed.notify_all();
}

std::string HashStore::get(std::string_view key, Milliseconds timeout) {
  const std::string name(key);
  wait(std::span(&name, 1), timeout);
  return multi_get(std::span(&name, 1)).front();
}

std::int64_t HashStore::add(std::string_view key, std::int64_t delta) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->values.find(std::string(key));
  const auto before = found == state_->values.end() ? 0 : leading_integer(found->second);
  if (!before) {
    throw Error(Errc::protocol,
                fmt::format("store key '{}' holds '{}', no number to add to", key, found->second));
  }
  const std::int64_t sum = wrapping_add(*before, delta);
  state_->values.insert_or_assign(std::string(key), std::to_string(sum));
  state_->changed.notify_all();
  return sum;
}

bool HashStore::check(std::span<const std::string> keys) {
  const std::lock_guard lock(state_->mutex);
  return state_->holds_all(keys);
}

void HashStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  std::unique_lock lock(state_->mutex);
  if (!state_->changed.wait_for(lock, timeout, [&] { return state_->holds_all(keys); })) {
    throw Error(Errc::timeout, fmt::format("no store key {} within {} ms", fmt::join(keys, ", "),
                                           timeout.count()));
  }
}

std::string HashStore::compare_set(std::string_view key, std::string_view expected,
                                   std::string_view desired) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->values.find(std::string(key));
  if (found == state_->values.end() ? !expected.empty() : found->second != expected) {
    return found == state_->values.end() ? std::string(expected) : found->second;
  }
  state_->values.insert_or_assign(std::string(key), std::string(desired));
  state_->changed.notify_all();
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

void HashStore::append(std::string_view key, std::string_view value) {
  const std::lock_guard lock(state_->mutex);
  state_->values[std::string(key)].append(value);
  state_->changed.notify_all();
}

std::vector<std::string> HashStore::multi_get(std::span<const std::string> keys) {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> found;
  for (const std::string& key : keys) {
    const auto entry = state_->values.find(key);
    found.push_back(entry == state_->values.end() ? std::string() : entry->second);
  }
  return found;
}

void HashStore::multi_set(std::span<const std::pair<std::string, std::string>> pairs) {
  const std::lock_guard lock(state_->mutex);
  for (const auto& [key, value] : pairs) {
    state_->values.insert_or_assign(key, value);
  }
  state_->changed.notify_all();
}

std::unique_ptr<Store> HashStore::clone() {
  return std::unique_ptr<Store>(new HashStore(state_));
}

}  // namespace acc::rendezvous
