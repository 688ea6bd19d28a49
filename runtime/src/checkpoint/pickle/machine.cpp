#include "checkpoint/pickle/machine.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <utility>

namespace acc::checkpoint::pickle {
namespace {

/// Python's own pickler gives up at a few hundred levels.
constexpr std::uint16_t kMaxDepth = 1000;
/// A value may occur in many places, which costs a byte or two each and, nested, makes little bytes
/// a tree without end. This many values for a byte no real state has.
constexpr std::uint64_t kExpandedPerByte = 64, kExpandedFree = 1'000'000;

}  // namespace

Machine::Machine(std::span<const std::byte> bytes, const std::string& where, const Allows& allows)
    : source_(bytes, where),
      allows_(allows),
      none_(&document_.add({.kind = Kind::none})),
      true_(&document_.add({.kind = Kind::boolean, .integer = 1})),
      false_(&document_.add({.kind = Kind::boolean, .integer = 0})),
      empty_tuple_(&document_.add({.kind = Kind::tuple})) {}

Document Machine::finish() {
  Value* root = pop();
  if (root->expanded > kExpandedFree + kExpandedPerByte * source_.nbytes()) {
    fail("values that are used again and again would expand to " + std::to_string(root->expanded));
  }
  document_.set_root(*root);
  return std::move(document_);
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

void Machine::integer(std::int64_t value) {
  const auto bits = static_cast<std::uint64_t>(value);
  Value*& last = integers_[(bits ^ bits >> 10) % integers_.size()];
  if (last == nullptr || last->integer != value) {
    last = &document_.add({.kind = Kind::integer, .integer = value});
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

Value& Machine::kept(Kind kind, std::string_view value) {
  Value& result = document_.add({.kind = kind, .text = document_.keep(value)});
  result.expanded += static_cast<std::uint32_t>(std::min<std::size_t>(
      value.size() / sizeof(Value*), std::numeric_limits<std::uint32_t>::max() / 2));
  return result;
}

Value::Items Machine::shared(Value& value) {
  value.fetched = true;
  capacities_.erase(value.items.data());
  return value.items;
}

void Machine::account(Value& to, std::span<Value* const> items) const {
  for (const Value* item : items) {
    if (item->depth >= kMaxDepth) {
      fail("values nested more than " + std::to_string(kMaxDepth) + " deep");
    }
    to.depth = std::max(to.depth, static_cast<std::uint16_t>(item->depth + 1));
    const std::uint64_t sum = std::uint64_t{to.expanded} + item->expanded;
    if (sum > std::numeric_limits<std::uint32_t>::max()) {
      fail("values that are used again and again would expand to " + std::to_string(sum));
    }
    to.expanded = static_cast<std::uint32_t>(sum);
  }
}

Value* Machine::composite(Kind kind, std::span<Value* const> items) {
  Value& value = document_.add({.kind = kind});
  extend(value, value.items, items);
  return &value;
}

/// With room for its state, which most have.
void Machine::push_object(Value* callable, Value* arguments, std::string_view name) {
  Value& value = document_.add({.kind = Kind::object, .name = name});
  const std::array items{callable, arguments};
  account(value, items);
  value.items = document_.keep(std::array<const Value*, 2>{callable, arguments}, 3);
  push(&value);
}

void Machine::extend(Value& to, Value::Items& items, std::span<Value* const> more) {
  if (more.empty()) {
    return;
  }
  // What the memo gave out may be inside of what is added now. Python's pickler does this only for
  // a value that contains itself.
  if (to.fetched) {
    fail("a value that contains itself");
  }
  account(to, more);
  const std::size_t count = items.size() + more.size();
  std::size_t capacity = 0;
  if (!items.empty()) {
    const auto known = capacities_.find(items.data());
    capacity = known != capacities_.end() ? known->second : items.size();
  }
  if (count > capacity) {
    // The first time just as much as is needed: most values are filled at once.
    const std::size_t wanted = items.empty() ? count : std::bit_ceil(count);
    const auto grown = document_.keep(items, wanted);
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

void Machine::global(std::string_view module, std::string_view name) {
  const std::hash<std::string_view> hash;
  Value*& last = globals_[(hash(module) ^ 3 * hash(name)) % globals_.size()];
  if (last == nullptr || !last->is_global(module, name)) {
    source_.utf8(module);
    source_.utf8(name);
    const Value named{.kind = Kind::global, .text = module, .name = name};
    if (!allows_(module, name)) {
      fail("global " + named.describe() + " is not allowed");
    }
    last = &document_.add(
        {.kind = Kind::global, .text = document_.keep(module), .name = document_.keep(name)});
  }
  push(last);
}

void Machine::put(std::uint64_t id) {
  // Writers number from 0, so that there cannot be more than bytes.
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
