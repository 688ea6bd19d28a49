// SPDX-License-Identifier: Apache-2.0
#include "store/key_table.hpp"

#include "acc/base/error.hpp"
#include "store/decimal.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <numeric>
#include <utility>

namespace acc::rendezvous {
namespace {

// Estimated memory of one key, queue, queue entry and awaited name, without its text: objects,
// nodes of the containers and the allocator's overhead.
constexpr std::size_t kKeyBytes = 128;
constexpr std::size_t kQueueBytes = 768;
constexpr std::size_t kEntryBytes = 64;
constexpr std::size_t kAwaitedBytes = 384;

// A string of more than this capacity is reallocated when its value shrinks to less than half.
constexpr std::size_t kKeptCapacity = 1024;

// Number of hashes of names that are told apart by last_change.
constexpr std::size_t kChangeSlots = std::size_t{1} << 14;

std::size_t slot_of(std::string_view name) {
  return std::hash<std::string_view>()(name) % kChangeSlots;
}

std::size_t size_of(std::string_view key, std::string_view value) {
  return kKeyBytes + key.size() + value.size();
}

}  // namespace

/// Throws Error(out_of_memory) if so much more would exceed a limit. Called before any change, so
/// that a refused call has no effect.
void KeyTable::make_room(std::size_t more_bytes, std::size_t more_keys) const {
  if (more_keys > limits_.max_keys - values_.size()) {
    throw Error(Errc::out_of_memory,
                fmt::format("the store is full: it may hold {} keys", limits_.max_keys));
  }
  if (bytes() > limits_.max_bytes || more_bytes > limits_.max_bytes - bytes()) {
    throw Error(Errc::out_of_memory,
                fmt::format("the store is full: it may hold {} bytes", limits_.max_bytes));
  }
}

/// Accounts for a value that changes its size.
void KeyTable::resize(std::size_t before, std::size_t after) {
  if (after > before) {
    make_room(after - before);
  }
  stored_bytes_ += after - before;  // wraps around correctly if the value shrinks
}

/// Stores a value at `found`, or as a new key if that is end(). Does not release waiters.
void KeyTable::store(Values::iterator found, std::string_view key, std::string_view value) {
  if (found == values_.end()) {
    const std::size_t size = size_of(key, value);
    make_room(size, 1);
    values_.emplace(key, value);
    stored_bytes_ += size;
    return note(Change::set, key, value);
  }
  std::string& stored = found->second;
  resize(stored.size(), value.size());
  if (stored.capacity() > kKeptCapacity && stored.capacity() / 2 > value.size()) {
    std::string(value).swap(stored);
  } else {
    stored.assign(value);
  }
  note(Change::set, key, value);
}

void KeyTable::repeat(Change change, std::string_view key, std::string_view value) {
  switch (change) {
    case Change::set: store(values_.find(key), key, value); break;
    case Change::append: append(key, value); break;
    case Change::erase: erase(key); break;
    case Change::push: queue_push(key, value); break;
    case Change::pop: queue_pop(key); break;
    case Change::clear: clear(); break;
  }
}

void KeyTable::save(const Receive& receive) const {
  for (const auto& [key, value] : values_) {
    receive(Change::set, key, value);
  }
  for (const auto& [queue, entries] : queues_) {
    for (const std::string& entry : entries) {
      receive(Change::push, queue, entry);
    }
  }
}

void KeyTable::record_with(Record record) {
  record_ = std::move(record);
  changes_.assign(record_ ? kChangeSlots : 0, 0);
}

std::uint64_t KeyTable::last_change(std::string_view name) const {
  return changes_.empty() ? 0 : changes_[slot_of(name)];
}

void KeyTable::note(Change change, std::string_view key, std::string_view value) {
  if (!record_) {
    return;
  }
  const std::uint64_t number = record_(change, key, value);
  if (change == Change::clear) {
    std::ranges::fill(changes_, number);
  } else {
    changes_[slot_of(key)] = number;
  }
}

void KeyTable::set(std::string_view key, std::string_view value) {
  store(values_.find(key), key, value);
  appeared(key);
}

void KeyTable::set_all(std::span<const std::string_view> keys,
                       std::span<const std::string_view> values) {
  make_room(std::transform_reduce(keys.begin(), keys.end(), values.begin(), std::size_t{0},
                                  std::plus<>(), size_of),
            keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    set(keys[i], values[i]);
  }
}

void KeyTable::append(std::string_view key, std::string_view value) {
  if (const auto found = values_.find(key); found != values_.end()) {
    resize(0, value.size());
    found->second.append(value);
    note(Change::append, key, value);
  } else {
    store(found, key, value);
  }
  appeared(key);
}

std::string_view KeyTable::compare_set(std::string_view key, std::string_view expected,
                                       std::string_view desired) {
  const std::string* stored = find(key);
  if (stored == nullptr && !expected.empty()) {
    return expected;
  }
  if (stored != nullptr && *stored != expected) {
    return *stored;
  }
  set(key, desired);
  return desired;
}

std::optional<std::int64_t> KeyTable::add(std::string_view key, std::int64_t delta) {
  const auto sum = increment(key, delta);
  if (sum) {
    appeared(key);
  }
  return sum;
}

std::optional<std::int64_t> KeyTable::increment(std::string_view key, std::int64_t delta) {
  const auto found = values_.find(key);
  const auto before = found == values_.end() ? 0 : leading_integer(found->second);
  if (!before) {
    return std::nullopt;
  }
  const std::int64_t sum = wrapping_add(*before, delta);
  char text[24];
  store(found, key, {text, std::to_chars(text, text + sizeof text, sum).ptr});
  return sum;
}

bool KeyTable::erase(std::string_view key) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return false;
  }
  stored_bytes_ -= size_of(key, found->second);
  values_.erase(found);
  note(Change::erase, key, "");
  return true;
}

const std::string* KeyTable::find(std::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void KeyTable::clear() {
  values_ = {};
  queues_ = {};
  stored_bytes_ = 0;
  note(Change::clear, "", "");
}

void KeyTable::queue_push(std::string_view queue, std::string_view value) {
  const auto found = queues_.find(queue);
  const std::size_t size =
      kEntryBytes + value.size() + (found == queues_.end() ? kQueueBytes + queue.size() : 0);
  make_room(size);
  auto& entries = found == queues_.end() ? queues_[std::string(queue)] : found->second;
  entries.emplace_back(value);
  stored_bytes_ += size;
  note(Change::push, queue, value);
  // One value, one waiter: the oldest. Releasing all would make the others find an empty queue.
  if (const auto waiting = waiting_for_.find(queue); waiting != waiting_for_.end()) {
    satisfy(waiting->second.begin()->second, queue);
  }
}

std::optional<std::string> KeyTable::queue_pop(std::string_view queue) {
  const auto found = queues_.find(queue);
  if (found == queues_.end()) {
    return std::nullopt;
  }
  std::string value = std::move(found->second.front());
  found->second.pop_front();
  stored_bytes_ -= kEntryBytes + value.size();
  if (found->second.empty()) {
    stored_bytes_ -= kQueueBytes + queue.size();
    queues_.erase(found);
  }
  note(Change::pop, queue, "");
  return value;
}

std::size_t KeyTable::queue_size(std::string_view queue) const {
  const auto found = queues_.find(queue);
  return found == queues_.end() ? 0 : found->second.size();
}

bool KeyTable::present(std::string_view key) const {
  return values_.contains(key) || queues_.contains(key);
}

bool KeyTable::all_present(std::span<const std::string_view> keys) const {
  return std::ranges::all_of(keys, [this](std::string_view key) { return present(key); });
}

bool KeyTable::wait(WaiterId waiter, std::span<const std::string_view> keys) {
  cancel(waiter);
  TextSet missing;  // a set: a name that is listed twice counts once
  for (const std::string_view key : keys) {
    if (!present(key)) {
      missing.emplace(key);
    }
  }
  if (missing.empty()) {
    return true;
  }
  enroll(waiter, std::move(missing));
  return false;
}

std::optional<bool> KeyTable::barrier(WaiterId waiter, std::string_view key,
                                      std::int64_t world_size) {
  const auto arrived = increment(key, 1);
  if (!arrived) {
    return std::nullopt;
  }
  cancel(waiter);
  if (*arrived < world_size) {
    enroll(waiter, {std::string(key)});
    return false;
  }
  appeared(key);
  return true;
}

/// Registers a waiter without earlier registration.
void KeyTable::enroll(WaiterId waiter, TextSet missing) {
  const std::size_t size =
      std::transform_reduce(missing.begin(), missing.end(), std::size_t{0}, std::plus<>(),
                            [](const std::string& key) { return kAwaitedBytes + key.size(); });
  make_room(size);
  awaited_bytes_ += size;
  const Ticket ticket = next_ticket_++;
  for (const std::string& key : missing) {
    waiting_for_[key].emplace(ticket, waiter);
  }
  waiters_.insert_or_assign(waiter, Waiter{ticket, std::move(missing)});
}

void KeyTable::cancel(WaiterId waiter) {
  const auto found = waiters_.find(waiter);
  if (found == waiters_.end()) {
    return;
  }
  for (const std::string& key : found->second.missing) {
    const auto waiting = waiting_for_.find(key);
    waiting->second.erase(found->second.ticket);
    if (waiting->second.empty()) {
      waiting_for_.erase(waiting);
    }
    awaited_bytes_ -= kAwaitedBytes + key.size();
  }
  waiters_.erase(found);
}

/// Satisfies all waiters on `key`, oldest first.
void KeyTable::appeared(std::string_view key) {
  if (waiting_for_.empty()) {
    return;  // the usual case: saves the hash of the key
  }
  // Looks the key up again in each step: `satisfy` removes its entry with the last waiter.
  for (auto found = waiting_for_.find(key); found != waiting_for_.end();
       found = waiting_for_.find(key)) {
    satisfy(found->second.begin()->second, key);
  }
}

/// Removes `key` from what `waiter` waits for; releases it if that was the last one.
void KeyTable::satisfy(WaiterId waiter, std::string_view key) {
  Waiter& state = waiters_.at(waiter);
  state.missing.erase(state.missing.find(key));
  awaited_bytes_ -= kAwaitedBytes + key.size();
  const auto waiting = waiting_for_.find(key);
  waiting->second.erase(state.ticket);
  if (waiting->second.empty()) {
    waiting_for_.erase(waiting);
  }
  if (state.missing.empty()) {
    waiters_.erase(waiter);  // before the callback, which must find a consistent table
    release_(waiter);
  }
}

}  // namespace acc::rendezvous
