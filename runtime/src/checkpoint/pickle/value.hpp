#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>

namespace acc::checkpoint::pickle {

/// What a pickle describes, as data: nothing is ever called. It, its texts and its items lie in its
/// Document.
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
  bool fetched = false;        ///< the reader's: the memo gave it out
  std::uint16_t depth = 0;     ///< 0 for what has no items, else 1 + the deepest item's
  std::uint32_t expanded = 1;  ///< values in it and itself, shared ones as often as they occur
  std::int64_t integer = 0;
  double real = 0.0;
  std::string_view text = {};
  std::string_view name = {};
  Items items = {};
  Items entries = {};

  [[nodiscard]] bool is(Kind which) const noexcept { return kind == which; }
  /// Whether it is that global ("torch", "Size").
  [[nodiscard]] bool is_global(std::string_view module, std::string_view attribute) const noexcept;
  /// Whether it is an object made by that class or function.
  [[nodiscard]] bool is_object_of(std::string_view module,
                                  std::string_view attribute) const noexcept;
  /// Of a dict, or of an object that is one (OrderedDict, defaultdict) or whose state is a dict;
  /// null where there is none. Linear.
  [[nodiscard]] const Value* find(std::string_view key) const noexcept;
  /// Key, value, … of the same.
  [[nodiscard]] Items pairs() const noexcept;
  /// "a dict", "text 'abc'", "torch.Size": for messages.
  [[nodiscard]] std::string describe() const;
};

/// The values of one pickle and their storage. Values may be shared, never circular.
class Document {
 public:
  Document() : memory_(std::make_unique<std::pmr::monotonic_buffer_resource>()) {}

  [[nodiscard]] const Value& root() const noexcept { return *root_; }
  /// The texts and items that `value` refers to are the document's too, or constants.
  Value& add(const Value& value) { return *std::construct_at(room<Value>(1), value); }
  /// A copy of the text that lives as long as the document.
  std::string_view keep(std::string_view text);
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
