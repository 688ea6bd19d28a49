#include "checkpoint/pickle/reader.hpp"

#include "checkpoint/pickle/source.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace acc::checkpoint::pickle {
namespace {

using Kind = Value::Kind;

/// Python's own pickler gives up at a few hundred levels.
constexpr std::uint16_t kMaxDepth = 1000;
/// A value may occur in many places, which costs a byte or two each and, nested, makes little bytes
/// a tree without end. This many values for a byte no real state has.
constexpr std::uint64_t kExpandedPerByte = 64, kExpandedFree = 1'000'000;

/// The stack machine that a pickle is a program for, without what would run anything.
class Machine {
 public:
  Machine(std::span<const std::byte> bytes, const std::string& where, const Allows& allows)
      : source_(bytes, where), allows_(allows) {
    none_ = &document_.add({.kind = Kind::none});
    false_ = &document_.add({.kind = Kind::boolean, .integer = 0});
    true_ = &document_.add({.kind = Kind::boolean, .integer = 1});
    empty_tuple_ = &document_.add({.kind = Kind::tuple});
  }

  Document run(std::size_t* consumed);

 private:
  using Handlers = std::array<void (*)(Machine&), 256>;
  static constexpr Handlers handlers();
  static constexpr void add_constants(Handlers& on);
  static constexpr void add_texts(Handlers& on);
  static constexpr void add_containers(Handlers& on);
  static constexpr void add_objects(Handlers& on);
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
  void bytes(std::string_view value) {
    push(&document_.add({.kind = Kind::bytes, .text = document_.keep(value)}));
  }
  Value* composite(Kind kind, std::span<Value* const> items, std::string_view name = {});
  void push_marked(Kind kind);
  void tuple_of(std::size_t count);
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
  unsigned char opcode_ = 0;
};

Value* Machine::pop() {
  Value* value = top();
  stack_.pop_back();
  return value;
}

Value* Machine::top() {
  if (stack_.size() <= floor())
    fail("a value is missing on the stack");
  return stack_.back();
}

std::span<Value* const> Machine::marked() {
  if (marks_.empty())
    fail("a MARK is missing");
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
    last = &document_.add({.kind = Kind::text, .text = document_.keep(value)});
  }
  push(last);
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

Value* Machine::composite(Kind kind, std::span<Value* const> items, std::string_view name) {
  Value& value = document_.add({.kind = kind, .name = name});
  extend(value, value.items, items);
  return &value;
}

void Machine::extend(Value& to, Value::Items& items, std::span<Value* const> more) {
  if (more.empty())
    return;
  // What the memo gave out may be inside of what is added now. Python's pickler does this only for
  // a value that contains itself.
  if (to.fetched)
    fail("a value that contains itself");
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
  // The document's own memory, which only this machine writes.
  auto** end = const_cast<const Value**>(items.data()) + items.size();
  std::copy(more.begin(), more.end(), end);
  items = {items.data(), count};
}

void Machine::push_marked(Kind kind) {
  Value* value = composite(kind, marked());
  drop_mark();
  push(value);
}

void Machine::tuple_of(std::size_t count) {
  if (stack_.size() < floor() + count)
    fail("a value is missing on the stack");
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
    if (!allows_(module, name))
      fail("global " + named.describe() + " is not allowed");
    last = &document_.add(
        {.kind = Kind::global, .text = document_.keep(module), .name = document_.keep(name)});
  }
  push(last);
}

void Machine::put(std::uint64_t id) {
  // Writers number from 0, so that there cannot be more than bytes.
  if (id >= source_.nbytes())
    fail("memo id " + std::to_string(id) + " is out of range");
  if (id >= memo_.size())
    memo_.resize(id + 1);
  memo_[id] = top();
}

void Machine::get(std::uint64_t id) {
  if (id >= memo_.size() || memo_[id] == nullptr) {
    fail("memo id " + std::to_string(id) + " was not stored");
  }
  memo_[id]->fetched = true;
  push(memo_[id]);
}

void Machine::op_int() {
  const std::string_view line = source_.line();
  if (line == "00" || line == "01")
    return push(line == "01" ? true_ : false_);
  integer(source_.decimal(line));
}

void Machine::op_long() {
  std::string_view line = source_.line();
  if (line.ends_with('L'))
    line.remove_suffix(1);
  integer(source_.decimal(line));
}

void Machine::op_stack_global() {
  const Value* name = pop();
  const Value* module = pop();
  if (!name->is(Kind::text) || !module->is(Kind::text)) {
    fail("a global named by " + module->describe() + " and " + name->describe());
  }
  global(module->text, name->text);
}

Value* Machine::plain_data(const Value& callable, Value::Items arguments) {
  const bool builtin = callable.text == "builtins" || callable.text == "__builtin__";
  const Value* first = arguments.empty() ? nullptr : arguments[0];
  const bool from_text = arguments.size() == 2 && first->is(Kind::text);
  if ((callable.is_global("_codecs", "encode") || (builtin && callable.name == "bytearray")) &&
      from_text) {
    std::string latin1;
    if (!latin1_of_utf8(first->text, latin1))
      fail("bytes from text that is not latin1");
    return &document_.add({.kind = Kind::bytes, .text = document_.keep(latin1)});
  }
  if (!builtin)
    return nullptr;
  const bool is_bytes = callable.name == "bytes" || callable.name == "bytearray";
  if (is_bytes && first == nullptr)
    return &document_.add({.kind = Kind::bytes});
  if (callable.name == "bytearray" && arguments.size() == 1 && first->is(Kind::bytes)) {
    return &document_.add({.kind = Kind::bytes, .text = first->text});
  }
  const bool is_set = callable.name == "set" || callable.name == "frozenset";
  if (!is_set || (first != nullptr && !first->is(Kind::list)))
    return nullptr;
  if (first == nullptr)
    return &document_.add({.kind = Kind::set});
  // It shares the list's items, which must therefore stay as they are.
  const_cast<Value*>(first)->fetched = true;
  return &document_.add({.kind = Kind::set,
                         .depth = first->depth,
                         .expanded = first->expanded,
                         .items = first->items});
}

void Machine::op_reduce() {
  Value* arguments = pop();
  Value* callable = pop();
  if (!callable->is(Kind::global))
    fail("a call of " + callable->describe());
  if (!arguments->is(Kind::tuple))
    fail("a call with " + arguments->describe());
  if (Value* plain = plain_data(*callable, arguments->items))
    return push(plain);
  push(composite(Kind::object, std::array{callable, arguments}, "reduce"));
}

void Machine::op_new_object() {
  Value* arguments = pop();
  Value* type = pop();
  if (!type->is(Kind::global))
    fail("an object of " + type->describe());
  if (!arguments->is(Kind::tuple))
    fail("an object with " + arguments->describe());
  push(composite(Kind::object, std::array{type, arguments}, "new"));
}

void Machine::op_new_object_ex() {
  Value* keywords = pop();
  if (!keywords->is(Kind::dict))
    fail("keyword arguments in " + keywords->describe());
  op_new_object();
  Value* object = top();
  keywords->fetched = true;
  object->entries = keywords->items;
  account(*object, std::array{keywords});
}

void Machine::op_build() {
  Value* state = pop();
  Value* object = top();
  if (!object->is(Kind::object))
    fail("state for " + object->describe());
  if (object->items.size() > 2)
    fail("a second state for " + object->describe());
  extend(*object, object->items, std::array{state});
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
  if (mark <= (marks_.size() > 1 ? marks_[marks_.size() - 2] : 0))
    fail("items of no list");
  append_to(*stack_[mark - 1], items);
  drop_mark();
}

void Machine::append_to(Value& list, std::span<Value* const> items) {
  if (!list.is(Kind::list))
    fail("items for " + list.describe());
  extend(list, list.items, items);
}

void Machine::op_set_item() {
  Value* value = pop();
  Value* key = pop();
  set_items(*top(), std::array{key, value});
}

void Machine::op_set_items() {
  const auto items = marked();
  const std::size_t mark = marks_.back();
  if (mark <= (marks_.size() > 1 ? marks_[marks_.size() - 2] : 0))
    fail("keys of no dict");
  set_items(*stack_[mark - 1], items);
  drop_mark();
}

void Machine::set_items(Value& dict, std::span<Value* const> items) {
  if (items.size() % 2 != 0)
    fail("a key without a value");
  if (dict.is(Kind::dict))
    return extend(dict, dict.items, items);
  if (!dict.is(Kind::object))
    fail("keys for " + dict.describe());
  extend(dict, dict.entries, items);
}

void Machine::op_dict() {
  if (marked().size() % 2 != 0)
    fail("a key without a value");
  push_marked(Kind::dict);
}

void Machine::op_add_items() {
  const auto items = marked();
  const std::size_t mark = marks_.back();
  if (mark <= (marks_.size() > 1 ? marks_[marks_.size() - 2] : 0))
    fail("items of no set");
  Value& set = *stack_[mark - 1];
  if (!set.is(Kind::set))
    fail("items for " + set.describe());
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
  if (protocol > 5)
    fail("protocol " + std::to_string(protocol) + ", expected 0 to 5");
}

void Machine::op_unknown() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  fail(std::string("opcode 0x") + kDigits[opcode_ >> 4] + kDigits[opcode_ & 15] +
       " is not one that is read here");
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
  on['T'] = on['X'];  // what Python 2 called a string
  on['U'] = on[0x8c];
  on['V'] = [](Machine& m) { m.text(m.source_.unescaped_unicode(m.source_.line())); };
  on['S'] = [](Machine& m) { m.text(m.source_.unquoted(m.source_.line())); };
  on['B'] = [](Machine& m) { m.bytes(m.source_.take(m.source_.unsigned_of(4))); };
  on['C'] = [](Machine& m) { m.bytes(m.source_.take(m.source_.unsigned_of(1))); };
  on[0x8e] = [](Machine& m) { m.bytes(m.source_.take(m.source_.unsigned_of(8))); };
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
  add_constants(on);
  add_texts(on);
  add_containers(on);
  add_objects(on);
  on[0x80] = [](Machine& m) { m.op_protocol(); };
  on[0x95] = [](Machine& m) { m.source_.unsigned_of(8); };  // a hint for reading ahead
  on['0'] = [](Machine& m) { m.op_pop(); };
  on['1'] = [](Machine& m) { m.marked(), m.drop_mark(); };
  on['2'] = [](Machine& m) { m.top()->fetched = true, m.push(m.top()); };
  on['p'] = [](Machine& m) {
    m.put(static_cast<std::uint64_t>(m.source_.decimal(m.source_.line())));
  };
  on['q'] = [](Machine& m) { m.put(m.source_.unsigned_of(1)); };
  on['r'] = [](Machine& m) { m.put(m.source_.unsigned_of(4)); };
  on[0x94] = [](Machine& m) { m.put(m.memo_.size()); };
  on['g'] = [](Machine& m) {
    m.get(static_cast<std::uint64_t>(m.source_.decimal(m.source_.line())));
  };
  on['h'] = [](Machine& m) { m.get(m.source_.unsigned_of(1)); };
  on['j'] = [](Machine& m) { m.get(m.source_.unsigned_of(4)); };
  return on;
}

Document Machine::run(std::size_t* consumed) {
  static constexpr Handlers kHandlers = handlers();
  for (opcode_ = source_.opcode(); opcode_ != '.'; opcode_ = source_.opcode()) {
    kHandlers[opcode_](*this);
  }
  Value* root = pop();
  if (root->expanded > kExpandedFree + kExpandedPerByte * source_.nbytes()) {
    fail("values that are used again and again would expand to " + std::to_string(root->expanded));
  }
  document_.set_root(*root);
  if (consumed != nullptr)
    *consumed = source_.position();
  return std::move(document_);
}

}  // namespace

Document read(std::span<const std::byte> bytes, const std::string& where, const Allows& allows,
              std::size_t* consumed) {
  return Machine(bytes, where, allows).run(consumed);
}

}  // namespace acc::checkpoint::pickle
