#pragma once

#include "checkpoint/pickle/value.hpp"
#include "checkpoint/tensor/box.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::checkpoint::pickle {

/// A value of a pickle and where it is, so that whoever takes it apart can say so: every fault
/// throws Error(config) "<file>: key 'a.b' must be …, and is …". Cheap to copy; refers to a
/// Document.
class Node {
 public:
  /// `where`: the file, and the entry in it.
  Node(const Value& value, std::string where, std::string key = {});

  [[nodiscard]] const Value& value() const noexcept { return *value_; }
  [[nodiscard]] const std::string& key() const noexcept { return key_; }
  /// "<file>: key 'a.b'"
  [[nodiscard]] std::string where() const;
  /// Throws: what it must be, and what it is.
  [[noreturn]] void fail(const std::string& expected) const;

  [[nodiscard]] bool is_none() const noexcept { return value_->is(Value::Kind::none); }
  [[nodiscard]] bool is_dict() const noexcept;
  [[nodiscard]] bool is_list() const noexcept;  ///< or a tuple
  [[nodiscard]] bool is_text() const noexcept { return value_->is(Value::Kind::text); }
  [[nodiscard]] bool is_number() const noexcept;  ///< integer, real, boolean

  /// Of a dict (or an object that is or holds one): a key that must be there.
  [[nodiscard]] Node at(std::string_view name) const;
  /// A key that may be absent or None.
  [[nodiscard]] std::optional<Node> find(std::string_view name) const;
  /// Keys and values of a dict in their order; keys are texts, or integers in decimal.
  [[nodiscard]] std::vector<std::pair<std::string, Node>> entries() const;
  /// Of a list or a tuple.
  [[nodiscard]] std::vector<Node> items() const;

  [[nodiscard]] std::int64_t integer() const;
  /// Integers and booleans too.
  [[nodiscard]] double real() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::string text() const;
  /// A torch.Size, or a list or tuple of integers; checked by check_shape.
  [[nodiscard]] Shape shape() const;

 private:
  [[nodiscard]] Node child(const Value& value, std::string_view name) const;

  const Value* value_;
  std::string where_;
  std::string key_;
};

}  // namespace acc::checkpoint::pickle
