// SPDX-License-Identifier: Apache-2.0
#include "pickle/machine.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

// The pickle machine: stack, marks and memo, and how values are built. The opcodes are in
// reader.cpp.
//
// Bounds that make hostile input harmless:
// - Nothing is recursive, so nesting costs no stack. Each value knows its depth; more than
//   kMaxDepth is an error, so that users of Values may recurse.
// - Values are never circular. A container that was fetched from the memo (or duplicated) cannot be
//   changed any more, because what is added could contain it.
// - `expanded` counts the values that a traversal would visit. It is limited at the end, because a
//   few bytes can describe an exponentially large tree of shared values.
// - Memo ids are below the number of bytes, and every value costs at least one opcode, so that
//   memory stays proportional to the input.
namespace acc::checkpoint::pickle {
namespace {

/// Largest nesting. Python's own pickler gives up at a few hundred levels.
constexpr std::uint16_t kMaxDepth = 1000;
/// Limit of `expanded` at the root: kExpandedFree + kExpandedPerByte * bytes. A value may occur in
/// many places, which costs a byte or two each. Nested, this makes a few bytes a tree of any size.
/// Real state has far fewer values per byte.
constexpr std::uint64_t kExpandedPerByte = 64, kExpandedFree = 1'000'000;

}  // namespace

Machine::Machine(std::span<const std::byte> bytes, const std::string& where, const Allows& allows)
    : source_(bytes, where),
      allows_(allows),
      none_(&values_.add({.kind = Kind::none})),
      true_(&values_.add({.kind = Kind::boolean, .integer = 1})),
      false_(&values_.add({.kind = Kind::boolean, .integer = 0})),
      empty_tuple_(&values_.add({.kind = Kind::tuple})) {}

Values Machine::finish() {
  Value* root = pop();
  if (root->expanded > kExpandedFree + kExpandedPerByte * source_.nbytes()) {
    refuse("repeated values would expand to " + std::to_string(root->expanded) + " values");
  }
  values_.set_root(*root);
  return std::move(values_);
}

Value* Machine::pop() {
  Value* value = top();
  stack_.pop_back();
  return value;
}

Value* Machine::top() {
  if (stack_.size() <= floor()) {
    fail("a value is missing on the stack");
  }
  return stack_.back();
}

std::span<Value* const> Machine::marked() {
  if (marks_.empty()) {
    fail("a MARK is missing");
  }
  return std::span<Value* const>(stack_).subspan(marks_.back());
}

void Machine::drop_mark() {
  stack_.resize(marks_.back());
  marks_.pop_back();
}

// Small caches reuse the last value with the same hash. `.metadata` repeats the same integers,
// strings and globals in every chunk.
void Machine::integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  Value*& last = integers_[(bits ^ bits >> 10) % integers_.size()];
  if (last == nullptr || last->integer != value) {
    last = &values_.add({.kind = Kind::integer, .integer = value});
  }
  push(last);
}

void Machine::text(std::string_view value) {
  Value*& last = texts_[std::hash<std::string_view>()(value) % texts_.size()];
  if (last == nullptr || last->text != value) {
    last = &kept(Kind::text, value);
  }
  push(last);
}

// The length counts in `expanded`: a reader that copies a repeated string pays for each copy.
Value& Machine::kept(Kind kind, std::string_view value) {
  Value& result = values_.add({.kind = kind, .text = values_.keep(value)});
  result.expanded += static_cast<std::uint32_t>(std::min<std::size_t>(
      value.size() / sizeof(void*), std::numeric_limits<std::uint32_t>::max() / 2));
  return result;
}

// Another value now refers to the same memory. Forgetting the capacity makes the next `extend` of
// either value copy the items first.
Value::Items Machine::shared(Value& value) {
  value.fetched = true;
  capacities_.erase(value.items.data());
  return value.items;
}

// Updates depth and expanded of a container to which items are added.
void Machine::account(Value& to, std::span<Value* const> items) const {
  for (const Value* item : items) {
    if (item->depth >= kMaxDepth) {
      refuse("values nested more than " + std::to_string(kMaxDepth) + " deep");
    }
    to.depth = std::max(to.depth, static_cast<std::uint16_t>(item->depth + 1));
    const std::uint64_t sum = std::uint64_t{to.expanded} + item->expanded;
    if (sum > std::numeric_limits<std::uint32_t>::max()) {
      refuse("repeated values would expand to " + std::to_string(sum) + " values");
    }
    to.expanded = static_cast<std::uint32_t>(sum);
  }
}

Value* Machine::composite(Kind kind, std::span<Value* const> items) {
  Value& value = values_.add({.kind = kind});
  extend(value, value.items, items);
  return &value;
}

/// Pushes an object with room for its state, which most objects get from BUILD.
void Machine::push_object(Value* callable, Value* arguments, std::string_view name) {
  Value& value = values_.add({.kind = Kind::object, .name = name});
  const std::array items{callable, arguments};
  account(value, items);
  value.items = values_.keep(std::array<const Value*, 2>{callable, arguments}, 3);
  push(&value);
}

void Machine::extend(Value& to, Value::Items& items, std::span<Value* const> more) {
  if (more.empty()) {
    return;
  }
  // Items that are added now may contain this value, because the memo gave it out. Python's pickler
  // emits this only for a value that contains itself.
  if (to.fetched) {
    refuse("a value that contains itself");
  }
  account(to, more);
  const std::size_t count = items.size() + more.size();
  std::size_t capacity = 0;
  if (!items.empty()) {
    const auto known = capacities_.find(items.data());
    capacity = known != capacities_.end() ? known->second : items.size();
  }
  if (count > capacity) {
    // The first allocation is exact, because most containers are filled by one opcode. Later ones
    // grow by powers of two.
    const std::size_t wanted = items.empty() ? count : std::bit_ceil(count);
    const auto grown = values_.keep(items, wanted);
    if (!items.empty()) {
      capacities_.erase(items.data());
      capacities_.emplace(grown.data(), wanted);
    }
    items = grown;
  }
  std::copy(more.begin(), more.end(), own(items) + items.size());
  items = {items.data(), count};
}

void Machine::push_marked(Kind kind) {
  Value* value = composite(kind, marked());
  drop_mark();
  push(value);
}

void Machine::tuple_of(std::size_t count) {
  if (stack_.size() < floor() + count) {
    fail("a value is missing on the stack");
  }
  Value* value = composite(Kind::tuple, std::span<Value* const>(stack_).last(count));
  stack_.resize(stack_.size() - count);
  push(value);
}

// Resolves a global against the allow list. Nothing is imported: a global is a pair of names.
void Machine::global(std::string_view module, std::string_view name) {
  const std::hash<std::string_view> hash;
  Value*& last = globals_[(hash(module) ^ 3 * hash(name)) % globals_.size()];
  if (last == nullptr || !last->is_global(module, name)) {
    source_.utf8(module);
    source_.utf8(name);
    const Value named{.kind = Kind::global, .text = module, .name = name};
    if (!allows_(module, name) && !is_getattr(module, name)) {
      refuse("global " + named.describe() + " is not allowed");
    }
    last = &values_.add(
        {.kind = Kind::global, .text = values_.keep(module), .name = values_.keep(name)});
  }
  push(last);
}

void Machine::put(std::uint64_t id) {
  // Writers number the memo from 0, so an id cannot reach the number of bytes.
  if (id >= source_.nbytes()) {
    fail("memo id " + std::to_string(id) + " is out of range");
  }
  if (id >= memo_.size()) {
    memo_.resize(id + 1);
  }
  memo_[id] = top();
}

void Machine::get(std::uint64_t id) {
  if (id >= memo_.size() || memo_[id] == nullptr) {
    fail("memo id " + std::to_string(id) + " was not stored");
  }
  memo_[id]->fetched = true;
  push(memo_[id]);
}

}  // namespace acc::checkpoint::pickle
