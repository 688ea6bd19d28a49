// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/pickle/writer.hpp"

#include "acc/checkpoint/pickle/source.hpp"

#include <bit>
#include <utility>

namespace acc::checkpoint::pickle {
namespace {

template <typename T>
void append_raw(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace

// PROTO 2. torch.load's restricted unpickler (weights_only=True) understands the opcodes used here.
Writer::Writer() : out_("\x80\x02") {}

Writer& Writer::none() {
  out_ += 'N';
  return *this;
}

Writer& Writer::boolean(bool value) {
  out_ += value ? '\x88' : '\x89';
  return *this;
}

// Uses the smallest opcode: BININT1, BININT2, BININT or LONG1.
Writer& Writer::integer(std::int64_t value) {
  if (value >= 0 && value < 1 << 8) {
    out_ += 'K';
    append_raw(out_, static_cast<std::uint8_t>(value));
  } else if (value >= 0 && value < 1 << 16) {
    out_ += 'M';
    append_raw(out_, static_cast<std::uint16_t>(value));
  } else if (std::in_range<std::int32_t>(value)) {
    out_ += 'J';
    append_raw(out_, static_cast<std::int32_t>(value));
  } else {
    // The fewest bytes that hold the value and its sign bit.
    const auto bits = static_cast<std::uint64_t>(value < 0 ? ~value : value);
    const auto nbytes = static_cast<std::size_t>(std::bit_width(bits)) / 8 + 1;
    out_ += '\x8a';
    out_ += static_cast<char>(nbytes);
    out_.append(reinterpret_cast<const char*>(&value), nbytes);
  }
  return *this;
}

Writer& Writer::real(double value) {
  out_ += 'G';
  append_raw(out_, __builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
  return *this;
}

Writer& Writer::text(std::string_view value) {
  out_ += 'X';
  append_raw(out_, static_cast<std::uint32_t>(value.size()));
  out_ += value;
  return *this;
}

// Protocol 2 has no opcode for bytes; this is the form in which Python 3 writes them.
Writer& Writer::bytes(std::string_view value) {
  global("_codecs", "encode").begin_tuple().text(utf8_of_latin1(value)).text("latin1");
  return end_tuple().reduce();
}

Writer& Writer::global(std::string_view module, std::string_view name) {
  out_ += 'c';
  out_ += module;
  out_ += '\n';
  out_ += name;
  out_ += '\n';
  return *this;
}

Writer& Writer::opcodes(std::string_view value) {
  out_ += value;
  return *this;
}

Writer& Writer::begin_tuple() {
  out_ += '(';
  return *this;
}

Writer& Writer::end_tuple() {
  out_ += 't';
  return *this;
}

Writer& Writer::begin_list() {
  out_ += "](";
  return *this;
}

Writer& Writer::end_list() {
  out_ += 'e';
  return *this;
}

Writer& Writer::begin_dict() {
  out_ += "}(";
  return *this;
}

Writer& Writer::end_dict() {
  out_ += 'u';
  return *this;
}

Writer& Writer::begin_ordered_dict() {
  global("collections", "OrderedDict");
  out_ += ")R(";
  return *this;
}

Writer& Writer::end_ordered_dict() {
  return end_dict();
}

Writer& Writer::reduce() {
  out_ += 'R';
  return *this;
}

Writer& Writer::new_object() {
  out_ += '\x81';
  return *this;
}

Writer& Writer::build() {
  out_ += 'b';
  return *this;
}

Writer& Writer::persistent() {
  out_ += 'Q';
  return *this;
}

// Writes BINPUT or LONG_BINPUT. The first 256 memo ids cost two bytes per use, later ones five.
std::uint32_t Writer::remember() {
  if (memo_ < 256) {
    out_ += 'q';
    append_raw(out_, static_cast<std::uint8_t>(memo_));
  } else {
    out_ += 'r';
    append_raw(out_, memo_);
  }
  return memo_++;
}

Writer& Writer::recall(std::uint32_t id) {
  if (id < 256) {
    out_ += 'h';
    append_raw(out_, static_cast<std::uint8_t>(id));
  } else {
    out_ += 'j';
    append_raw(out_, id);
  }
  return *this;
}

std::string Writer::finish() {
  out_ += '.';
  return take();
}

std::string Writer::take() {
  return std::exchange(out_, {});
}

}  // namespace acc::checkpoint::pickle
