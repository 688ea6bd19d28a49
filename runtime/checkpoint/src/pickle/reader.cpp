// SPDX-License-Identifier: Apache-2.0
#include "pickle/reader.hpp"

#include "pickle/machine.hpp"

#include <fmt/format.h>

#include <array>

// The opcodes of the pickle machine. `handlers` maps each opcode byte of protocols 0 to 5 to its
// action; docs/formats/torch_save.md lists the opcodes that are accepted. All others are errors.
namespace acc::checkpoint::pickle {

// INT: protocol 0 writes booleans as "I00" and "I01".
void Machine::op_int() {
  const std::string_view line = source_.line();
  if (line == "00" || line == "01") {
    return push(line == "01" ? true_ : false_);
  }
  integer(source_.decimal(line));
}

// LONG: protocol 0 and 1 append an "L".
void Machine::op_long() {
  std::string_view line = source_.line();
  if (line.ends_with('L')) {
    line.remove_suffix(1);
  }
  integer(source_.decimal(line));
}

void Machine::op_stack_global() {
  const Value* name = pop();
  const Value* module = pop();
  if (!name->is(Kind::text) || !module->is(Kind::text)) {
    fail("global named by " + module->describe() + " and " + name->describe() +
         ", expected two strings");
  }
  global(module->text, name->text);
}

// Protocol 2 has no opcode for bytes. Python 3 writes them as _codecs.encode(text, "latin1"), and
// sets as a call of set with a list. These calls are evaluated here, because their result is plain
// data.
Value* Machine::plain_data(const Value& callable, Value::Items arguments) {
  const bool builtin = callable.text == "builtins" || callable.text == "__builtin__";
  const Value* first = arguments.empty() ? nullptr : arguments[0];
  const bool from_text = arguments.size() == 2 && first->is(Kind::text);
  if ((callable.is_global("_codecs", "encode") || (builtin && callable.name == "bytearray")) &&
      from_text) {
    // The limit covers a string that is stored once and decoded many times by way of the memo.
    decoded_ += first->text.size();
    if (decoded_ > source_.nbytes()) {
      fail("strings are decoded to more bytes than the file has");
    }
    std::string latin1;
    if (!latin1_of_utf8(first->text, latin1)) {
      fail("bytes encoded as a string that is not Latin-1");
    }
    return &kept(Kind::bytes, latin1);
  }
  if (!builtin) {
    return nullptr;
  }
  const bool is_bytes = callable.name == "bytes" || callable.name == "bytearray";
  if (is_bytes && first == nullptr) {
    return &values_.add({.kind = Kind::bytes});
  }
  if (callable.name == "bytearray" && arguments.size() == 1 && first->is(Kind::bytes)) {
    return &values_.add({.kind = Kind::bytes, .expanded = first->expanded, .text = first->text});
  }
  const bool is_set = callable.name == "set" || callable.name == "frozenset";
  if (!is_set || (first != nullptr && !first->is(Kind::list))) {
    return nullptr;
  }
  if (first == nullptr) {
    return &values_.add({.kind = Kind::set});
  }
  // The set refers to the list's items without a copy.
  return &values_.add({.kind = Kind::set,
                       .depth = first->depth,
                       .expanded = first->expanded,
                       .items = shared(const_cast<Value&>(*first))});
}

// REDUCE: records a call of a global. Anything else on the stack cannot be a callable.
void Machine::op_reduce() {
  Value* arguments = pop();
  Value* callable = pop();
  if (!callable->is(Kind::global)) {
    fail("cannot call " + callable->describe() + ", expected a global");
  }
  if (!arguments->is(Kind::tuple)) {
    fail("call arguments must be a tuple, and are " + arguments->describe());
  }
  if (is_getattr(callable->text, callable->name)) {
    return push_enumerator(arguments->items);
  }
  if (Value* plain = plain_data(*callable, arguments->items)) {
    return push(plain);
  }
  push_object(callable, arguments, "reduce");
}

void Machine::push_enumerator(Value::Items arguments) {
  if (arguments.size() != 2 || !arguments[0]->is(Kind::global) || !arguments[1]->is(Kind::text)) {
    refuse("cannot call global builtins.getattr, expected an enumerator");
  }
  const Value& type = *arguments[0];
  const auto number = enumerator(type.text, type.name, arguments[1]->text);
  if (!number) {
    refuse("attribute '" + std::string(arguments[1]->text) + "' of " + type.describe() +
           " is not allowed");
  }
  integer(*number);
}

// NEWOBJ: records cls.__new__(cls, *arguments).
void Machine::op_new_object() {
  Value* arguments = pop();
  Value* type = pop();
  if (!type->is(Kind::global) || is_getattr(type->text, type->name)) {
    fail("cannot make an object of " + type->describe() + ", expected a class");
  }
  if (!arguments->is(Kind::tuple)) {
    fail("arguments of a new object must be a tuple, and are " + arguments->describe());
  }
  push_object(type, arguments, "new");
}

// NEWOBJ_EX: as NEWOBJ, with keyword arguments, which become entries of the object.
void Machine::op_new_object_ex() {
  Value* keywords = pop();
  if (!keywords->is(Kind::dict)) {
    fail("keyword arguments must be a dict, and are " + keywords->describe());
  }
  op_new_object();
  Value* object = top();
  object->entries = shared(*keywords);
  account(*object, std::array{keywords});
}

// BUILD: records the state of an object. push_object has reserved the place for it.
void Machine::op_build() {
  Value* state = pop();
  Value* object = top();
  if (!object->is(Kind::object)) {
    fail("cannot set the state of " + object->describe());
  }
  if (object->items.size() > 2) {
    fail("second state for " + object->describe());
  }
  if (object->fetched) {
    refuse("a value that contains itself");
  }
  account(*object, std::array{state});
  *(own(object->items) + 2) = state;
  object->items = {object->items.data(), 3};
}

void Machine::op_persistent() {
  Value* id = pop();
  push(composite(Kind::persistent, std::array{id}));
}

void Machine::op_append() {
  Value* item = pop();
  append_to(*top(), std::array{item});
}

void Machine::op_appends() {
  const auto items = marked();
  const std::size_t mark = marks_.back();
  if (mark <= (marks_.size() > 1 ? marks_[marks_.size() - 2] : 0)) {
    fail("APPENDS without a list below its MARK");
  }
  append_to(*stack_[mark - 1], items);
  drop_mark();
}

// Objects take items too, as a deque does. No reader asks for them, so they are not kept.
void Machine::append_to(Value& list, std::span<Value* const> items) {
  if (list.is(Kind::list)) {
    return extend(list, list.items, items);
  }
  if (!list.is(Kind::object)) {
    fail("cannot append items to " + list.describe());
  }
}

void Machine::op_set_item() {
  Value* value = pop();
  Value* key = pop();
  set_items(*top(), std::array{key, value});
}

void Machine::op_set_items() {
  const auto items = marked();
  const std::size_t mark = marks_.back();
  if (mark <= (marks_.size() > 1 ? marks_[marks_.size() - 2] : 0)) {
    fail("SETITEMS without a dict below its MARK");
  }
  set_items(*stack_[mark - 1], items);
  drop_mark();
}

// Objects take keys too: an OrderedDict is an object on which the pickle sets items.
void Machine::set_items(Value& dict, std::span<Value* const> items) {
  if (items.size() % 2 != 0) {
    fail("a key without a value");
  }
  if (dict.is(Kind::dict)) {
    return extend(dict, dict.items, items);
  }
  if (!dict.is(Kind::object)) {
    fail("cannot set keys of " + dict.describe());
  }
  extend(dict, dict.entries, items);
}

void Machine::op_dict() {
  if (marked().size() % 2 != 0) {
    fail("a key without a value");
  }
  push_marked(Kind::dict);
}

void Machine::op_add_items() {
  const auto items = marked();
  const std::size_t mark = marks_.back();
  if (mark <= (marks_.size() > 1 ? marks_[marks_.size() - 2] : 0)) {
    fail("ADDITEMS without a set below its MARK");
  }
  Value& set = *stack_[mark - 1];
  if (!set.is(Kind::set)) {
    fail("cannot add items to " + set.describe());
  }
  extend(set, set.items, items);
  drop_mark();
}

void Machine::op_pop() {
  if (stack_.size() > floor()) {
    stack_.pop_back();
  } else if (!marks_.empty()) {
    marks_.pop_back();
  } else {
    fail("a value is missing on the stack");
  }
}

void Machine::op_protocol() {
  const std::uint64_t protocol = source_.unsigned_of(1);
  if (protocol > 5) {
    fail("protocol " + std::to_string(protocol) + ", expected 0 to 5");
  }
}

// Objects of Python 2, extensions, identifiers as text, and buffers outside of the pickle.
void Machine::op_unsupported() {
  refuse(fmt::format("opcode 0x{:02x} is not supported", opcode_));
}

void Machine::op_unknown() {
  fail(fmt::format("there is no opcode 0x{:02x}", opcode_));
}

constexpr void Machine::add_constants(Handlers& on) {
  on['N'] = [](Machine& m) { m.push(m.none_); };
  on[0x88] = [](Machine& m) { m.push(m.true_); };
  on[0x89] = [](Machine& m) { m.push(m.false_); };
  on['I'] = [](Machine& m) { m.op_int(); };
  on['L'] = [](Machine& m) { m.op_long(); };
  on['J'] = [](Machine& m) { m.integer(static_cast<std::int32_t>(m.source_.unsigned_of(4))); };
  on['K'] = [](Machine& m) { m.integer(static_cast<std::int64_t>(m.source_.unsigned_of(1))); };
  on['M'] = [](Machine& m) { m.integer(static_cast<std::int64_t>(m.source_.unsigned_of(2))); };
  on[0x8a] = [](Machine& m) {
    m.integer(m.source_.long_of(m.source_.take(m.source_.unsigned_of(1))));
  };
  on[0x8b] = [](Machine& m) {
    m.integer(m.source_.long_of(m.source_.take(m.source_.unsigned_of(4))));
  };
  on['F'] = [](Machine& m) { m.real(m.source_.decimal_real(m.source_.line())); };
  on['G'] = [](Machine& m) { m.real(m.source_.big_endian_double()); };
}

constexpr void Machine::add_texts(Handlers& on) {
  on['X'] = [](Machine& m) { m.text_of(m.source_.unsigned_of(4)); };
  on[0x8c] = [](Machine& m) { m.text_of(m.source_.unsigned_of(1)); };
  on[0x8d] = [](Machine& m) { m.text_of(m.source_.unsigned_of(8)); };
  on['T'] = on['X'];  // BINSTRING and SHORT_BINSTRING: Python 2's str
  on['U'] = on[0x8c];
  on['V'] = [](Machine& m) { m.text(m.source_.unescaped_unicode(m.source_.line())); };
  on['S'] = [](Machine& m) { m.text(m.source_.unquoted(m.source_.line())); };
  on['B'] = [](Machine& m) { m.bytes(m.source_.take(m.source_.unsigned_of(4))); };
  on['C'] = [](Machine& m) { m.bytes(m.source_.take(m.source_.unsigned_of(1))); };
  on[0x8e] = [](Machine& m) { m.bytes(m.source_.take(m.source_.unsigned_of(8))); };
  // BYTEARRAY8 has the same form as BINBYTES8.
  on[0x96] = on[0x8e];
}

constexpr void Machine::add_containers(Handlers& on) {
  on['('] = [](Machine& m) { m.marks_.push_back(m.stack_.size()); };
  on[')'] = [](Machine& m) { m.push(m.empty_tuple_); };
  on['t'] = [](Machine& m) { m.push_marked(Kind::tuple); };
  on[0x85] = [](Machine& m) { m.tuple_of(1); };
  on[0x86] = [](Machine& m) { m.tuple_of(2); };
  on[0x87] = [](Machine& m) { m.tuple_of(3); };
  on[']'] = [](Machine& m) { m.push(m.composite(Kind::list, {})); };
  on['l'] = [](Machine& m) { m.push_marked(Kind::list); };
  on['a'] = [](Machine& m) { m.op_append(); };
  on['e'] = [](Machine& m) { m.op_appends(); };
  on['}'] = [](Machine& m) { m.push(m.composite(Kind::dict, {})); };
  on['d'] = [](Machine& m) { m.op_dict(); };
  on['s'] = [](Machine& m) { m.op_set_item(); };
  on['u'] = [](Machine& m) { m.op_set_items(); };
  on[0x8f] = [](Machine& m) { m.push(m.composite(Kind::set, {})); };
  on[0x90] = [](Machine& m) { m.op_add_items(); };
  on[0x91] = [](Machine& m) { m.push_marked(Kind::set); };
}

constexpr void Machine::add_objects(Handlers& on) {
  on['c'] = [](Machine& m) { m.op_global(); };
  on[0x93] = [](Machine& m) { m.op_stack_global(); };
  on['R'] = [](Machine& m) { m.op_reduce(); };
  on[0x81] = [](Machine& m) { m.op_new_object(); };
  on[0x92] = [](Machine& m) { m.op_new_object_ex(); };
  on['b'] = [](Machine& m) { m.op_build(); };
  on['Q'] = [](Machine& m) { m.op_persistent(); };
}

constexpr Machine::Handlers Machine::handlers() {
  Handlers on{};
  on.fill([](Machine& m) { m.op_unknown(); });
  for (const char opcode : std::string_view("ioP\x82\x83\x84\x97\x98")) {
    on[static_cast<unsigned char>(opcode)] = [](Machine& m) { m.op_unsupported(); };
  }
  add_constants(on);
  add_texts(on);
  add_containers(on);
  add_objects(on);
  on[0x80] = [](Machine& m) { m.op_protocol(); };
  on[0x95] = [](Machine& m) { m.source_.unsigned_of(8); };  // FRAME: a hint for reading ahead
  on['0'] = [](Machine& m) { m.op_pop(); };
  on['1'] = [](Machine& m) { m.marked(), m.drop_mark(); };                 // POP_MARK
  on['2'] = [](Machine& m) { m.top()->fetched = true, m.push(m.top()); };  // DUP
  on['p'] = [](Machine& m) {
    m.put(static_cast<std::uint64_t>(m.source_.decimal(m.source_.line())));
  };
  on['q'] = [](Machine& m) { m.put(m.source_.unsigned_of(1)); };
  on['r'] = [](Machine& m) { m.put(m.source_.unsigned_of(4)); };
  on[0x94] = [](Machine& m) { m.put(m.memo_.size()); };  // MEMOIZE: the next free id
  on['g'] = [](Machine& m) {
    m.get(static_cast<std::uint64_t>(m.source_.decimal(m.source_.line())));
  };
  on['h'] = [](Machine& m) { m.get(m.source_.unsigned_of(1)); };
  on['j'] = [](Machine& m) { m.get(m.source_.unsigned_of(4)); };
  return on;
}

Values Machine::run(std::size_t* consumed) {
  static constexpr Handlers kHandlers = handlers();
  for (opcode_ = source_.opcode(); opcode_ != '.'; opcode_ = source_.opcode()) {
    kHandlers[opcode_](*this);
  }
  if (consumed != nullptr) {
    *consumed = source_.position();
  }
  return finish();
}

Values read(std::span<const std::byte> bytes, const std::string& where, const Allows& allows,
            std::size_t* consumed) {
  return Machine(bytes, where, allows).run(consumed);
}

}  // namespace acc::checkpoint::pickle
