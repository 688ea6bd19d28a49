#pragma once

#include "checkpoint/pickle/reader.hpp"
#include "checkpoint/pickle/source.hpp"
#include "checkpoint/pickle/value.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace acc::checkpoint::pickle {

/// The stack machine that a pickle is a program for, without what would run anything.
class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const std::string& where, const Allows& allows);

  Document run(std::size_t* consumed);

 private:
  using Kind = Value::Kind;
  using Handlers = std::array<void (*)(Machine&), 256>;
  static constexpr Handlers handlers();
  static constexpr void add_constants(Handlers& on);
  static constexpr void add_texts(Handlers& on);
  static constexpr void add_containers(Handlers& on);
  static constexpr void add_objects(Handlers& on);
  /// What is on the stack at STOP.
  Document finish();
  [[noreturn]] void fail(const std::string& what) const { source_.fail(what); }

  // The stack.
  void push(Value* value) { stack_.push_back(value); }
  Value* pop();
  Value* top();
  /// Items above the last mark; `drop_mark` takes both away.
  std::span<Value* const> marked();
  void drop_mark();
  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  // Values.
  void integer(std::int64_t value);
  void real(double value) { push(&document_.add({.kind = Kind::real, .real = value})); }
  void text(std::string_view value);
  void text_of(std::uint64_t nbytes) { text(source_.utf8(source_.take(nbytes))); }
  void bytes(std::string_view value) { push(&kept(Kind::bytes, value)); }
  /// A value of these bytes, copied; long ones count for as many values as they take memory.
  Value& kept(Kind kind, std::string_view value);
  /// The items, for another value to have too: whoever adds to them gets memory of its own.
  Value::Items shared(Value& value);
  Value* composite(Kind kind, std::span<Value* const> items);
  void push_object(Value* callable, Value* arguments, std::string_view name);
  void push_marked(Kind kind);
  void tuple_of(std::size_t count);
  /// The document's memory, which only this machine writes.
  static const Value** own(Value::Items items) { return const_cast<const Value**>(items.data()); }
  /// Appends to the items or entries of `to`.
  void extend(Value& to, Value::Items& items, std::span<Value* const> more);
  void account(Value& to, std::span<Value* const> items) const;
  void global(std::string_view module, std::string_view name);
  /// What a call of a plain-data type gives; null for other callables.
  Value* plain_data(const Value& callable, Value::Items arguments);

  // The memo.
  void put(std::uint64_t id);
  void get(std::uint64_t id);

  // Opcodes with more than a line to them.
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
  void op_unknown();

  Source source_;
  const Allows& allows_;
  Document document_;
  std::vector<Value*> stack_;
  std::vector<std::size_t> marks_;  ///< stack sizes
  std::vector<Value*> memo_;
  /// Of items that grew more than once: room at this address.
  std::unordered_map<const void*, std::size_t> capacities_;
  /// The last values of their kind: keys, offsets and sizes come again and again.
  std::array<Value*, 1024> integers_{}, texts_{}, globals_{};
  Value *none_, *true_, *false_, *empty_tuple_;
  std::uint64_t decoded_ = 0;  ///< bytes of texts that calls made bytes of
  unsigned char opcode_ = 0;
};

}  // namespace acc::checkpoint::pickle
