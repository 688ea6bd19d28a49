#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace acc::checkpoint::pickle {

/// What a pickle describes, as data: nothing is ever called. Owned by its Document.
struct Value {
  enum class Kind {
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
                 ///< "reduce" or "new"; keys set on it (SETITEMS, as on an OrderedDict) lie in
                 ///< `entries` (key, value, …), appended elements in `entries` of kind list
    persistent,  ///< items: the identifier (a torch storage)
  };
  Kind kind = Kind::none;
  std::int64_t integer = 0;
  double real = 0.0;
  std::string text = {};
  std::string name = {};
  std::vector<const Value*> items = {};
  std::vector<const Value*> entries = {};

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
  [[nodiscard]] const std::vector<const Value*>& pairs() const noexcept;
  /// "a dict", "text 'abc'", "torch.Size": for messages.
  [[nodiscard]] std::string describe() const;
};

/// The values of one pickle and their storage. Values may be shared, never circular.
class Document {
 public:
  Document() = default;
  Document(Document&&) = default;
  Document& operator=(Document&&) = default;
  Document(const Document&) = delete;
  Document& operator=(const Document&) = delete;

  [[nodiscard]] const Value& root() const noexcept { return *root_; }
  Value& add(Value value) { return values_.emplace_back(std::move(value)); }
  void set_root(const Value& root) noexcept { root_ = &root; }

 private:
  std::deque<Value> values_;
  const Value* root_ = nullptr;
};

}  // namespace acc::checkpoint::pickle
