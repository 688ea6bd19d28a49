// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/pickle/value.hpp"
#include "acc/checkpoint/tensor/box.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::checkpoint::pickle {

/// A value of a pickle together with its place, for readers that take a pickle apart. A value
/// that is missing or of another kind throws Unreadable "<file>: key 'a.b' must be …, and is …":
/// the pickle is sound, and another program wrote it. Cheap to copy. Refers to a Values, which must
/// outlive it.
class Node {
 public:
  /// `where`: the file, and the entry in it if there are several.
  Node(const Value& value, std::string where, std::string key = {});

  [[nodiscard]] const Value& value() const noexcept { return *value_; }
  [[nodiscard]] const std::string& key() const noexcept { return key_; }
  /// Returns the beginning of a message: "<file>: key 'a.b'".
  [[nodiscard]] std::string where() const;
  /// Throws Unreadable that states what the value must be, and what it is.
  [[noreturn]] void refuse(const std::string& expected) const;

  [[nodiscard]] bool is_none() const noexcept { return value_->is(Value::Kind::none); }
  [[nodiscard]] bool is_dict() const noexcept;
  [[nodiscard]] bool is_list() const noexcept;  ///< list or tuple
  [[nodiscard]] bool is_text() const noexcept { return value_->is(Value::Kind::text); }
  [[nodiscard]] bool is_number() const noexcept;  ///< integer, real or boolean

  /// Returns the value of a key that must exist, in a dict or an object that is or holds one.
  [[nodiscard]] Node at(std::string_view name) const;
  /// Returns the value of a key, or nothing if it is absent or None.
  [[nodiscard]] std::optional<Node> find(std::string_view name) const;
  /// Keys and values of a dict in their order. Keys are strings, or integers as decimal text.
  [[nodiscard]] std::vector<std::pair<std::string, Node>> entries() const;
  /// Items of a list or tuple.
  [[nodiscard]] std::vector<Node> items() const;

  [[nodiscard]] std::int64_t integer() const;
  /// Accepts integers and booleans too.
  [[nodiscard]] double real() const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::string text() const;
  /// Returns a torch.Size, or a list or tuple of integers, after check_shape.
  [[nodiscard]] Shape shape() const;

 private:
  [[nodiscard]] Node child(const Value& value, std::string_view name) const;

  const Value* value_;
  std::string where_;
  std::string key_;
};

}  // namespace acc::checkpoint::pickle
