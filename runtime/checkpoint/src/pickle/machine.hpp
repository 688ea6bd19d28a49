// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/pickle/source.hpp"
#include "acc/checkpoint/pickle/value.hpp"
#include "pickle/reader.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace acc::checkpoint::pickle {

/// The stack machine for which a pickle is a program. It builds values and runs no code: REDUCE,
/// NEWOBJ and BUILD only record what Python would call.
class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const std::string& where, const Allows& allows);

  Values run(std::size_t* consumed);

 private:
  using Kind = Value::Kind;
  using Handlers = std::array<void (*)(Machine&), 256>;
  static constexpr Handlers handlers();
  static constexpr void add_constants(Handlers& on);
  static constexpr void add_texts(Handlers& on);
  static constexpr void add_containers(Handlers& on);
  static constexpr void add_objects(Handlers& on);
  /// Returns the values, whose root is the value on top of the stack. Called at STOP.
  Values finish();
  [[noreturn]] void fail(const std::string& what) const { source_.fail(what); }
  [[noreturn]] void refuse(const std::string& what) const { source_.refuse(what); }

  // The stack.
  void push(Value* value) { stack_.push_back(value); }
  Value* pop();
  Value* top();
  /// Items above the last MARK. `drop_mark` removes the items and the MARK.
  std::span<Value* const> marked();
  void drop_mark();
  /// Size of the stack at the last MARK. Opcodes that pop must not go below it.
  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  // Values.
  void integer(std::int64_t value);
  void real(double value) { push(&values_.add({.kind = Kind::real, .real = value})); }
  void text(std::string_view value);
  void text_of(std::uint64_t nbytes) { text(source_.utf8(source_.take(nbytes))); }
  void bytes(std::string_view value) { push(&kept(Kind::bytes, value)); }
  /// Adds a value with a copy of these bytes. A long one counts in `expanded` by its memory.
  Value& kept(Kind kind, std::string_view value);
  /// Returns the items of a value so that another value can refer to them. Whichever of the two is
  /// extended later gets its own memory first.
  Value::Items shared(Value& value);
  Value* composite(Kind kind, std::span<Value* const> items);
  void push_enumerator(Value::Items arguments);
  void push_object(Value* callable, Value* arguments, std::string_view name);
  void push_marked(Kind kind);
  void tuple_of(std::size_t count);
  /// The memory of the values as writable. Only this machine writes it.
  static const Value** own(Value::Items items) { return const_cast<const Value**>(items.data()); }
  /// Appends to `items`, which are the items or entries of `to`.
  void extend(Value& to, Value::Items& items, std::span<Value* const> more);
  /// Adds the depth and the number of expanded values of `items` to those of `to`.
  void account(Value& to, std::span<Value* const> items) const;
  void global(std::string_view module, std::string_view name);
  /// Returns the value for a call of a type whose objects are plain data (bytes, bytearray, set,
  /// frozenset, _codecs.encode); null for other callables.
  Value* plain_data(const Value& callable, Value::Items arguments);

  // The memo (PUT, MEMOIZE and GET).
  void put(std::uint64_t id);
  void get(std::uint64_t id);

  // Opcodes that need more than one line.
  void op_int();
  void op_long();
  void op_global() {
    const std::string_view module = source_.line();
    global(module, source_.line());
  }
  void op_stack_global();
  void op_reduce();
  void op_new_object();
  void op_new_object_ex();
  void op_build();
  void op_persistent();
  void op_append();
  void op_appends();
  void append_to(Value& list, std::span<Value* const> items);
  void op_set_item();
  void op_set_items();
  void set_items(Value& dict, std::span<Value* const> items);
  void op_dict();
  void op_add_items();
  void op_pop();
  void op_protocol();
  void op_unsupported();
  void op_unknown();

  Source source_;
  const Allows& allows_;
  Values values_;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;  ///< sizes of the stack, one per open MARK
  std::vector<Value*> memo_;
  /// Allocated length of item lists that grew more than once, by address.
  std::unordered_map<const void*, std::size_t> capacities_;
  /// Caches of the last values of each kind, by hash: `.metadata` repeats keys, offsets and sizes.
  std::array<Value*, 1024> integers_{}, texts_{}, globals_{};
  Value *none_, *true_, *false_, *empty_tuple_;
  std::uint64_t decoded_ = 0;  ///< bytes made from strings by calls so far
  unsigned char opcode_ = 0;
};

}  // namespace acc::checkpoint::pickle
