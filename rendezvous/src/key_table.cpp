#include "key_table.hpp"

#include "decimal.hpp"

#include <algorithm>
#include <utility>

namespace acc::rendezvous {

void KeyTable::set(const std::string& key, std::string value) {
  values_.insert_or_assign(key, std::move(value));
  appeared(key);
}

void KeyTable::append(const std::string& key, const std::string& value) {
  values_[key].append(value);
  appeared(key);
}

std::string KeyTable::compare_set(const std::string& key, std::string expected,
                                  std::string desired) {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    if (!expected.empty()) {
      return expected;
    }
  } else if (found->second != expected) {
    return found->second;
  }
  set(key, desired);
  return desired;
}

std::optional<std::int64_t> KeyTable::add(const std::string& key, std::int64_t delta) {
  const auto sum = increment(key, delta);
  if (sum) {
    appeared(key);
  }
  return sum;
}

std::optional<std::int64_t> KeyTable::increment(const std::string& key, std::int64_t delta) {
  const auto found = values_.find(key);
  const auto before = found == values_.end() ? 0 : leading_integer(found->second);
  if (!before) {
    return std::nullopt;
  }
  const std::int64_t sum = wrapping_add(*before, delta);
  values_.insert_or_assign(key, std::to_string(sum));
  return sum;
}

const std::string* KeyTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

void KeyTable::clear() {
  values_.clear();
  queues_.clear();
}

void KeyTable::queue_push(const std::string& queue, std::string value) {
  queues_[queue].push_back(std::move(value));
  if (const auto waiting = waiting_for_.find(queue); waiting != waiting_for_.end()) {
    satisfy(waiting->second.begin()->second, queue);
  }
}

std::optional<std::string> KeyTable::queue_pop(const std::string& queue) {
  const auto found = queues_.find(queue);
  if (found == queues_.end()) {
    return std::nullopt;
  }
  std::string value = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) {
    queues_.erase(found);
  }
  return value;
}

std::size_t KeyTable::queue_size(const std::string& queue) const {
  const auto found = queues_.find(queue);
  return found == queues_.end() ? 0 : found->second.size();
}

bool KeyTable::present(const std::string& key) const {
  return values_.contains(key) || queues_.contains(key);
}

bool KeyTable::all_present(std::span<const std::string> keys) const {
  return std::ranges::all_of(keys, [this](const std::string& key) { return present(key); });
}

bool KeyTable::wait(WaiterId waiter, std::span<const std::string> keys) {
  cancel(waiter);
  std::unordered_set<std::string> missing;
  for (const std::string& key : keys) {
    if (!present(key)) {
      missing.insert(key);
    }
  }
  if (missing.empty()) {
    return true;
  }
  enroll(waiter, std::move(missing));
  return false;
}

std::optional<bool> KeyTable::barrier(WaiterId waiter, const std::string& key,
                                      std::int64_t world_size) {
  const auto arrived = increment(key, 1);
  if (!arrived) {
    return std::nullopt;
  }
  cancel(waiter);
  if (*arrived < world_size) {
    enroll(waiter, {key});
    return false;
  }
  appeared(key);
  return true;
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
  }
  waiters_.erase(found);
}

void KeyTable::enroll(WaiterId waiter, std::unordered_set<std::string> missing) {
  const Ticket ticket = next_ticket_++;
  for (const std::string& key : missing) {
    waiting_for_[key].emplace(ticket, waiter);
  }
  waiters_.insert_or_assign(waiter, Waiter{ticket, std::move(missing)});
}

void KeyTable::appeared(const std::string& key) {
  for (auto found = waiting_for_.find(key); found != waiting_for_.end();
       found = waiting_for_.find(key)) {
    satisfy(found->second.begin()->second, key);
  }
}

void KeyTable::satisfy(WaiterId waiter, const std::string& key) {
  Waiter& state = waiters_.at(waiter);
  state.missing.erase(key);
  const auto waiting = waiting_for_.find(key);
  waiting->second.erase(state.ticket);
  if (waiting->second.empty()) {
    waiting_for_.erase(waiting);
  }
  if (state.missing.empty()) {
    waiters_.erase(waiter);
    release_(waiter);
  }
}

}  // namespace acc::rendezvous
