// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>

namespace acc::checkpoint::pickle {

/// A value that a pickle describes, as data: nothing is ever called. The value, its strings and its
/// items are owned by its Values.
struct Value {
  using Items = std::span<const Value* const>;

  enum class Kind : std::uint8_t {
    none,
    boolean,  ///< integer: 0 or 1
    integer,  ///< 64 bits; longer ones are refused
    real,
    text,  ///< UTF-8
    bytes,
    global,      ///< text: module, name: attribute ("torch", "float32")
    tuple,       ///< items
    list,        ///< items
    dict,        ///< items: key, value, key, value, … in order
    set,         ///< items
    object,      ///< items: callable or class, tuple of arguments; then state, if any. `name`:
                 ///< "reduce" or "new"; `entries`: key, value, … of keyword arguments and of
                 ///< keys set on it, as on an OrderedDict
    persistent,  ///< items: the identifier (a torch storage)
  };
  Kind kind = Kind::none;
  bool fetched = false;     ///< used by the reader: the memo gave it out
  std::uint16_t depth = 0;  ///< 0 without items, else 1 + the largest depth of an item
  /// Number of values in it, itself included. A shared value counts as often as it occurs.
  std::uint32_t expanded = 1;
  std::int64_t integer = 0;
  double real = 0.0;
  std::string_view text = {};
  std::string_view name = {};
  Items items = {};
  Items entries = {};

  [[nodiscard]] bool is(Kind which) const noexcept { return kind == which; }
  /// True if it is this global ("torch", "Size").
  [[nodiscard]] bool is_global(std::string_view module, std::string_view attribute) const noexcept;
  /// True if it is an object made by this class or function.
  [[nodiscard]] bool is_object_of(std::string_view module,
                                  std::string_view attribute) const noexcept;
  /// Returns the value of a key of a dict, or of an object that is a dict (OrderedDict,
  /// defaultdict) or whose state is a dict. Null if there is none. Searches linearly.
  [[nodiscard]] const Value* find(std::string_view key) const noexcept;
  /// Returns key, value, key, value, … of the same.
  [[nodiscard]] Items pairs() const noexcept;
  /// Returns a description for messages: "a dict", "string 'abc'", "torch.Size".
  [[nodiscard]] std::string describe() const;
};

/// Owns the values of one pickle and their memory. Values may be shared, but are never circular.
class Values {
 public:
  Values() : memory_(std::make_unique<std::pmr::monotonic_buffer_resource>()) {}

  [[nodiscard]] const Value& root() const noexcept { return *root_; }
  /// Adds a value. Its strings and items must be owned by this object, or be constants.
  Value& add(const Value& value) { return *std::construct_at(room<Value>(1), value); }
  /// Returns a copy of the text that lives as long as this object.
  std::string_view keep(std::string_view text);
  /// Returns a copy of the items, with room for `capacity` of them.
  std::span<const Value*> keep(std::span<const Value* const> items, std::size_t capacity = 0);
  void set_root(const Value& root) noexcept { root_ = &root; }

 private:
  template <typename T>
  T* room(std::size_t count) {
    return static_cast<T*>(memory_->allocate(count * sizeof(T), alignof(T)));
  }

  std::unique_ptr<std::pmr::monotonic_buffer_resource> memory_;
  const Value* root_ = nullptr;
};

}  // namespace acc::checkpoint::pickle
