// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/pickle/value.hpp"

#include <algorithm>
#include <cstring>

namespace acc::checkpoint::pickle {
namespace {

/// Quotes a string from a file for a message. Shows at most 60 bytes, and no control characters.
std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 60;
  std::string shown = "'";
  for (const char c : text.substr(0, kShown)) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    shown += control ? '?' : c;
  }
  return shown + (text.size() > kShown ? "…'" : "'");
}

// True for objects that behave as a dict: keys were set on them, or their class is one.
bool is_mapping(const Value& object) {
  return !object.entries.empty() || object.is_object_of("collections", "OrderedDict") ||
         object.is_object_of("collections", "defaultdict");
}

}  // namespace

bool Value::is_global(std::string_view module, std::string_view attribute) const noexcept {
  return kind == Kind::global && text == module && name == attribute;
}

bool Value::is_object_of(std::string_view module, std::string_view attribute) const noexcept {
  return kind == Kind::object && !items.empty() && items[0]->is_global(module, attribute);
}

// Order of preference for objects: items set on it (OrderedDict), then its state.
Value::Items Value::pairs() const noexcept {
  if (kind == Kind::dict) {
    return items;
  }
  if (kind != Kind::object) {
    return {};
  }
  if (is_mapping(*this)) {
    return entries;
  }
  // Any other object: its state, if that is a dict (as __dict__ is for most classes).
  const Value* state = items.size() > 2 ? items[2] : nullptr;
  return state != nullptr && state->is(Kind::dict) ? state->items : Items{};
}

const Value* Value::find(std::string_view key) const noexcept {
  const Items all = pairs();
  for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
    if (all[i]->is(Kind::text) && all[i]->text == key) {
      return all[i + 1];
    }
  }
  return nullptr;
}

std::string Value::describe() const {
  const auto of = [](const Value& which) {
    return std::string(which.text) + "." + std::string(which.name);
  };
  switch (kind) {
    case Kind::none: return "None";
    case Kind::boolean: return integer != 0 ? "True" : "False";
    case Kind::integer: return std::to_string(integer);
    case Kind::real: return std::to_string(real);
    case Kind::text: return "string " + quoted(text);
    case Kind::bytes: return std::to_string(text.size()) + " bytes";
    case Kind::global: return of(*this);
    case Kind::tuple: return "a tuple of " + std::to_string(items.size());
    case Kind::list: return "a list of " + std::to_string(items.size());
    case Kind::dict: return "a dict";
    case Kind::set: return "a set";
    case Kind::object: return "a " + of(*items[0]) + " object";
    case Kind::persistent: return "a storage";
  }
  return "";
}

std::string_view Values::keep(std::string_view text) {
  if (text.empty()) {
    return {};
  }
  char* copy = room<char>(text.size());
  std::memcpy(copy, text.data(), text.size());
  return {copy, text.size()};
}

// Copies the items to memory of this object that has room for `capacity` of them, so that a
// container can grow in place.
std::span<const Value*> Values::keep(std::span<const Value* const> items, std::size_t capacity) {
  if (items.empty() && capacity == 0) {
    return {};
  }
  const Value** copy = room<const Value*>(std::max(capacity, items.size()));
  std::copy(items.begin(), items.end(), copy);
  return {copy, items.size()};
}

}  // namespace acc::checkpoint::pickle
