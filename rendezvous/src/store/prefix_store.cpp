// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/prefix_store.hpp"

#include <utility>

namespace acc::rendezvous {

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : prefix_(std::move(prefix) + "/"), store_(std::move(store)) {}

// prefix_ ends in the slash that separates it from the key.

std::string PrefixStore::joined(std::string_view key) const {
  return prefix_ + std::string(key);
}

std::vector<std::string> PrefixStore::joined(std::span<const std::string> keys) const {
  std::vector<std::string> all;
  all.reserve(keys.size());
  for (const std::string& key : keys) {
    all.push_back(joined(key));
  }
  return all;
}

void PrefixStore::set(std::string_view key, std::string_view value) {
  store_->set(joined(key), value);
}

std::string PrefixStore::get(std::string_view key, Milliseconds timeout) {
  return store_->get(joined(key), timeout);
}

std::int64_t PrefixStore::add(std::string_view key, std::int64_t delta) {
  return store_->add(joined(key), delta);
}

bool PrefixStore::check(std::span<const std::string> keys) {
  return store_->check(joined(keys));
}

void PrefixStore::wait(std::span<const std::string> keys, Milliseconds timeout) {
  store_->wait(joined(keys), timeout);
}

std::string PrefixStore::compare_set(std::string_view key, std::string_view expected,
                                     std::string_view desired) {
  return store_->compare_set(joined(key), expected, desired);
}

bool PrefixStore::delete_key(std::string_view key) {
  return store_->delete_key(joined(key));
}

std::int64_t PrefixStore::num_keys() {
  return store_->num_keys();
}

std::vector<std::string> PrefixStore::list_keys() {
  std::vector<std::string> mine;
  for (const std::string& key : store_->list_keys()) {
    if (key.starts_with(prefix_)) {
      mine.push_back(key.substr(prefix_.size()));
    }
  }
  return mine;
}

void PrefixStore::append(std::string_view key, std::string_view value) {
  store_->append(joined(key), value);
}

std::vector<std::string> PrefixStore::multi_get(std::span<const std::string> keys,
                                                Milliseconds timeout) {
  return store_->multi_get(joined(keys), timeout);
}

void PrefixStore::multi_set(std::span<const KeyValue> pairs) {
  std::vector<KeyValue> all;
  all.reserve(pairs.size());
  for (const auto& [key, value] : pairs) {
    all.emplace_back(joined(key), value);
  }
  store_->multi_set(all);
}

void PrefixStore::queue_push(std::string_view queue, std::string_view value) {
  store_->queue_push(joined(queue), value);
}

std::string PrefixStore::queue_pop(std::string_view queue, Milliseconds timeout) {
  return store_->queue_pop(joined(queue), timeout);
}

std::optional<std::string> PrefixStore::try_queue_pop(std::string_view queue) {
  return store_->try_queue_pop(joined(queue));
}

std::int64_t PrefixStore::queue_len(std::string_view queue) {
  return store_->queue_len(joined(queue));
}

std::unique_ptr<Store> PrefixStore::clone() {
  // The constructor adds the slash again.
  return std::make_unique<PrefixStore>(prefix_.substr(0, prefix_.size() - 1), store_->clone());
}

}  // namespace acc::rendezvous
