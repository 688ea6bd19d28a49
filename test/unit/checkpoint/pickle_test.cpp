// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/pickle/writer.hpp"
#include "pickle/reader.hpp"
#include "support/errors.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

using namespace acc::checkpoint::pickle;
using Kind = Value::Kind;

namespace {

std::string data(const std::string& name) {
  return acc::test::file_text(ACC_TEST_DATA "/checkpoints/torch_save/" + name);
}

Values parse(std::string_view bytes) {
  return read(std::as_bytes(std::span(bytes)), "file");
}

/// Returns the message of the Error that reading throws; empty if it succeeds.
std::string refusal_of_pickle(std::string_view bytes) {
  return acc::test::refusal([&] { return parse(bytes); });
}

std::string operator""_s(const char* text, std::size_t size) {
  return {text, size};
}

/// Writes a random value; `text` receives the same value as text.
void random_value(Writer& writer, std::string& text, std::mt19937_64& generator, int depth) {
  const auto items = [&](int per_item) {
    for (auto n = static_cast<int>(generator() % 4) * per_item; n > 0; --n) {
      random_value(writer, text, generator, depth + 1);
    }
  };
  const auto number = static_cast<std::int64_t>(generator()) >> generator() % 64;
  switch (generator() % (depth > 5 ? 6 : 10)) {
    case 0:
      writer.none();
      text += "N";
      break;
    case 1:
      writer.boolean(number > 0);
      text += number > 0 ? "T" : "F";
      break;
    case 2:
      writer.integer(number);
      text += std::to_string(number) + " ";
      break;
    case 3:
      writer.real(static_cast<double>(number) / 8);
      text += std::to_string(static_cast<double>(number) / 8) + "r";
      break;
    case 4:
      writer.text("é" + std::to_string(number));
      text += "'é" + std::to_string(number) + "'";
      break;
    case 5: {
      std::string bytes(generator() % 9, '\0');
      for (char& c : bytes) {
        c = static_cast<char>(generator());
      }
      writer.bytes(bytes);
      text += "b'" + bytes + "'";
      break;
    }
    case 6: writer.begin_tuple(), text += "(", items(1), writer.end_tuple(), text += ")"; break;
    case 7: writer.begin_list(), text += "[", items(1), writer.end_list(), text += "]"; break;
    case 8: writer.begin_dict(), text += "{", items(2), writer.end_dict(), text += "}"; break;
    default:
      writer.begin_ordered_dict(), text += "<", items(2), writer.end_ordered_dict(), text += ">";
  }
}

/// Returns the same text for a value that was read.
void print(const Value& value, std::string& text) {
  const auto items = [&](char open, Value::Items of, char close) {
    text += open;
    for (const Value* item : of) {
      print(*item, text);
    }
    text += close;
  };
  switch (value.kind) {
    case Kind::none: text += "N"; break;
    case Kind::boolean: text += value.integer != 0 ? "T" : "F"; break;
    case Kind::integer: text += std::to_string(value.integer) + " "; break;
    case Kind::real: text += std::to_string(value.real) + "r"; break;
    case Kind::text: text += "'" + std::string(value.text) + "'"; break;
    case Kind::bytes: text += "b'" + std::string(value.text) + "'"; break;
    case Kind::tuple: return items('(', value.items, ')');
    case Kind::list: return items('[', value.items, ']');
    case Kind::dict: return items('{', value.items, '}');
    case Kind::object:
      CHECK(value.is_object_of("collections", "OrderedDict"));
      return items('<', value.pairs(), '>');
    default: FAIL("unexpected " << value.describe());
  }
}

}  // namespace

TEST_CASE("pickle: any nested values are read as they were written") {
  std::mt19937_64 generator(1);
  for (int i = 0; i < 500; ++i) {
    Writer writer;
    std::string expected, found;
    random_value(writer, expected, generator, 0);
    const std::string bytes = writer.finish() + "rest";
    std::size_t consumed = 0;
    const Values parsed = read(std::as_bytes(std::span(bytes)), "file", is_known_global, &consumed);
    print(parsed.root(), found);
    CHECK(found == expected);
    CHECK(consumed == bytes.size() - 4);
  }
}

TEST_CASE("pickle: integers of every size use the smallest opcode and are read back") {
  const std::vector<std::pair<std::int64_t, std::size_t>> cases = {{0, 2},
                                                                   {255, 2},
                                                                   {256, 3},
                                                                   {65535, 3},
                                                                   {65536, 5},
                                                                   {-1, 5},
                                                                   {INT32_MIN, 5},
                                                                   {INT32_MAX, 5},
                                                                   {1LL << 31, 7},
                                                                   {-(1LL << 31) - 1, 7},
                                                                   {(1LL << 39) - 1, 7},
                                                                   {1LL << 39, 8},
                                                                   {INT64_MAX, 10},
                                                                   {INT64_MIN, 10}};
  for (const auto& [number, nbytes] : cases) {
    Writer writer;
    writer.integer(number);
    const std::string bytes = writer.finish();
    CHECK(bytes.size() == 2 + nbytes + 1);
    CHECK(parse(bytes).root().integer == number);
  }
}

TEST_CASE("pickle: a writer's bytes can be taken in pieces, and the memo goes beyond a byte") {
  Writer writer;
  std::string bytes;
  std::vector<std::uint32_t> ids;
  writer.begin_list();
  for (int i = 0; i < 300; ++i) {
    writer.text("t" + std::to_string(i));
    ids.push_back(writer.remember());
    bytes += writer.take();
  }
  for (const std::uint32_t id : ids) {
    writer.recall(id);
  }
  writer.end_list();
  bytes += writer.finish();
  const Values parsed = parse(bytes);
  const Value::Items items = parsed.root().items;
  REQUIRE(items.size() == 600);
  for (std::size_t i = 0; i < 300; ++i) {
    CHECK(items[i]->text == "t" + std::to_string(i));
    CHECK(items[i + 300] == items[i]);
  }
}

TEST_CASE("pickle: protocols 0 to 5 of Python's own pickler") {
  for (int protocol = 0; protocol <= 5; ++protocol) {
    CAPTURE(protocol);
    const Values parsed = parse(data("protocol" + std::to_string(protocol) + ".pkl"));
    const Value& root = parsed.root();
    const auto printed = [&](const char* key) {
      std::string text;
      REQUIRE(root.find(key) != nullptr);
      print(*root.find(key), text);
      return text;
    };
    CHECK(printed("integers") ==
          "[0 1 -1 255 256 65535 65536 2147483647 -2147483648 2147483648 -1099511627776 "
          "4611686018427387904 9223372036854775807 -9223372036854775808 ]");
    const Value::Items others = root.find("others")->items;
    REQUIRE(others.size() == 8);
    CHECK(others[4]->real == -1e300);
    CHECK(others[5]->is(Kind::text));
    CHECK(others[6]->text == "é\n漢😀\\u0041'");
    CHECK(others[7]->is(Kind::bytes));
    CHECK(others[7]->text == "\0\xff'"_s);
    CHECK(printed("tuples") == "(()(1 )(1 2 )(1 2 3 )(1 2 3 4 ))");
    for (const Value* set : root.find("sets")->items) {
      CHECK(set->is(Kind::set));
      REQUIRE(set->items.size() == 1);
    }
    CHECK(printed("ordered") == "<'x'1 'y'[]>");
    CHECK(root.find("path")->is_object_of("pathlib", "PurePosixPath"));
    CHECK(root.find("shared")->items[0] == root.find("shared")->items[1]);
    const Value::Items all = root.find("long")->items;
    REQUIRE(all.size() == 2500);
    for (std::size_t i = 0; i < all.size(); ++i) {
      CHECK(all[i]->integer == static_cast<std::int64_t>(i));
    }
    CHECK(printed("nested") == "{'a'{'b'{'c'[{}]}}}");
  }
}

TEST_CASE("pickle: truncated and changed pickles are an Error or a value, never a crash") {
  for (const char* name : {"protocol0.pkl", "protocol2.pkl", "protocol4.pkl"}) {
    const std::string whole = data(name);
    for (std::size_t size = 0; size < whole.size(); size += size < 600 ? 1 : 37) {
      CHECK(refusal_of_pickle(std::string_view(whole).substr(0, size))
                .starts_with("file: pickle, byte "));
    }
    std::mt19937 generator(2);
    for (int i = 0; i < 3000; ++i) {
      std::string changed = whole.substr(0, 700) + ".";
      changed[generator() % changed.size()] = static_cast<char>(generator());
      refusal_of_pickle(changed);  // an Error or a value, no crash
    }
  }
}

// As Python 3.11.2 writes it, which Debian 12 has.
TEST_CASE("pickle: an enumerator by its name") {
  const auto number_of = [](const std::string& type, const std::string& name) {
    const std::string bytes = "c__builtin__\ngetattr\nc" + type + "\nX" +
                              std::string(1, static_cast<char>(name.size())) + "\0\0\0"_s + name +
                              "\x86R.";
    const Values values = read(std::as_bytes(std::span(bytes)), "file");
    return values.root().integer;
  };
  CHECK(number_of("deepspeed.runtime.zero.config\nZeroStageEnum", "gradients") == 2);
  CHECK(number_of("torch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING",
                  "TORCH_PRESERVE_FORMAT") == 2);
}

TEST_CASE("pickle: hostile and unknown pickles are refused with place and reason") {
  const struct {
    const char* what;
    std::string bytes;
    const char* message;
  } kCases[] = {
      {"a shell", "cos\nsystem\n(S'true'\ntR.", "byte 0: global os.system is not allowed"},
      {"the same by protocol 4", "\x80\x04\x8c\x05posix\x8c\x06system\x93."_s,
       "byte 17: global posix.system is not allowed"},
      {"eval", "cbuiltins\neval\n.", "global builtins.eval is not allowed"},
      {"eval of Python 2", "c__builtin__\neval\n.", "global __builtin__.eval"},
      {"an attribute of something known", "ctorch\nSize.__class__\n.", "is not allowed"},
      {"a call of what a call gave", "ccollections\nOrderedDict\n)R)R.",
       "cannot call a collections.O"},
      {"a call of a text", "X\1\0\0\0a)R."_s, "cannot call string 'a'"},
      {"a call without a tuple", "ccollections\nOrderedDict\n]R.",
       "must be a tuple, and are a list"},
      {"INST", "(iposix\nsystem\n.", "opcode 0x69"},
      {"OBJ", "(cposix\nsystem\no.", "global posix.system"},
      {"text PERSID", "Pabc\n.", "opcode 0x50"},
      {"extension", "\x82\x01.", "opcode 0x82"},
      {"out-of-band buffer", "\x97.", "opcode 0x97"},
      {"an opcode that there is not", "\xff.", "byte 0: there is no opcode 0xff"},
      {"a protocol to come", "\x80\x06.", "protocol 6, expected 0 to 5"},
      {"nothing", "", "byte 0: truncated"},
      {"no value", ".", "a value is missing on the stack"},
      {"a value behind a mark", "K\1(.", "a value is missing on the stack"},
      {"no mark", "K\1t.", "a MARK is missing"},
      {"items of nothing", "(K\1e.", "APPENDS without a list"},
      {"items across a mark", "]((K\1e.", "APPENDS without a list"},
      {"items of a tuple", "((tK\1a.", "cannot append items to a tuple of 0"},
      {"an odd dict", "}(K\1u.", "a key without a value"},
      {"keys of a list", "](K\1K\2u.", "cannot set keys of a list"},
      {"state for a dict", "}}b.", "cannot set the state of a dict"},
      {"two states", "ccollections\nOrderedDict\n)\x81}b}b.", "second state for"},
      {"memo", "h\1.", "memo id 1 was not stored"},
      {"memo, never stored", "N2q\0h\5."_s, "memo id 5 was not stored"},
      {"memo bomb", "Nr\xff\xff\xff\xff."_s, "memo id 4294967295 is out of range"},
      {"memo bomb, text", "Np99999999999\n.", "memo id 99999999999 is out of range"},
      {"memo of nothing", "q\0."_s, "a value is missing"},
      {"long text", "X\xff\xff\xff\x7f."_s, "2147483647 bytes are announced and 1 are left"},
      {"longer text", "\x8d\xff\xff\xff\xff\xff\xff\xff\xff."_s, "truncated"},
      {"longer bytes", "\x8e\xff\xff\xff\xff\xff\xff\xff\x7f."_s, "truncated"},
      {"long integer", "\x8b\xff\xff\xff\xff."_s, "truncated"},
      {"nine bytes", "\x8a\x09\0\0\0\0\0\0\0\0\1."_s, "integer of 9 bytes"},
      {"2^63", "\x8a\x09\0\0\0\0\0\0\0\x80\0."_s, "integer of 9 bytes"},
      {"a long line", "I99999999999999999999\n.", "more than 64 bits: '9999"},
      {"a number that is none", "Fabc\n.", "not a number"},
      {"text that is no text", "X\2\0\0\0\xc3\x28."_s, "string that is not UTF-8"},
      {"overlong text", "X\2\0\0\0\xc0\x80."_s, "not UTF-8"},
      {"bytes that are none", "c_codecs\nencode\n(X\3\0\0\0\xe6\xbc\xa2X\6\0\0\0latin1tR."_s,
       "not Latin-1"},
      {"an attribute of a class that is no enumeration",
       "c__builtin__\ngetattr\nctorch\nSize\nX\5\0\0\0count\x86R."_s,
       "attribute 'count' of torch.Size is not allowed"},
      {"an enumerator that there is not",
       "c__builtin__\ngetattr\ncdeepspeed.runtime.zero.config\nZeroStageEnum\nX\4\0\0\0four\x86R."_s,
       "attribute 'four' of"},
      {"an attribute of a text", "cbuiltins\ngetattr\nX\1\0\0\0aX\1\0\0\0b\x86R."_s,
       "expected an enumerator"},
      {"an object of a function", "cbuiltins\ngetattr\n)\x81.", "expected a class"},
      {"a list in itself", "]q\0h\0a."_s, "a value that contains itself"},
      {"a list in itself by another way", "]q\0(h\0ta."_s, "contains itself"},
      {"a dict in itself", "}q\0X\1\0\0\0ah\0s."_s, "contains itself"},
      {"an object in itself", "ccollections\nOrderedDict\n)Rq\0h\0b."_s, "contains itself"},
      {"a list in itself by DUP", "]2a.", "contains itself"},
  };
  for (const auto& row : kCases) {
    CAPTURE(row.what);
    const std::string fault = refusal_of_pickle(row.bytes);
    CHECK_MESSAGE(fault.find(row.message) != std::string::npos, fault);
    CHECK(fault.starts_with("file: pickle, byte "));
  }
}

TEST_CASE("pickle: what another program may write is not called damaged") {
  const std::string kCases[] = {"\x8a\x09\0\0\0\0\0\0\0\0\1."_s,
                                "I99999999999999999999\n.",
                                "(iposix\nsystem\n.",
                                "Pabc\n.",
                                "]q\0h\0a."_s,
                                "cbuiltins\ngetattr\nX\1\0\0\0aX\1\0\0\0b\x86R."_s,
                                std::string(1100, ']') + std::string(1099, 'a') + "."};
  for (const std::string& bytes : kCases) {
    CHECK(refusal_of_pickle(bytes).find("may be sound") != std::string::npos);
  }
  const Values deque = parse("ccollections\ndeque\n)R(X\1\0\0\0aK\1e."_s);
  CHECK(deque.root().pairs().empty());  // items, and no keys
}

TEST_CASE("pickle: size and nesting are bounded without recursion") {
  CHECK(refusal_of_pickle(std::string(1'000'000, '(')).find("truncated") != std::string::npos);
  CHECK(refusal_of_pickle(std::string(1'000'000, '(') + std::string(1'000'000, 't') + ".")
            .find("nested more than 1000 deep") != std::string::npos);
  CHECK(refusal_of_pickle(std::string(1'000'000, ']') + std::string(999'999, 'a') + ".")
            .find("nested more than 1000 deep") != std::string::npos);
  CHECK(refusal_of_pickle(std::string(900, ']') + std::string(899, 'a') + ".").empty());
  // Each tuple holds the one before it twice: 2^40 values in few bytes.
  std::string bomb = "Nq\0"_s;
  for (int i = 0; i < 40; ++i) {
    bomb += "h\0h\0\x86q\0"_s;
  }
  CHECK(refusal_of_pickle(bomb + ".").find("repeated values would expand") != std::string::npos);
  // A real state may use a value this often.
  std::string many = "K\1\x85q\0]("_s;
  for (int i = 0; i < 100'000; ++i) {
    many += "h\0"_s;
  }
  CHECK(refusal_of_pickle(many + "e.").empty());
}

TEST_CASE("pickle: repeated use of long strings is bounded") {
  // A string of 64 KiB, and about 10 bytes for each use of it.
  const std::string text = "X\0\0\1\0"_s + std::string(65536, 'a') + "q\0"_s;
  std::string bytes = "c_codecs\nencode\nq\1" + text + "0(";
  std::string dicts = text + "0(";
  for (int i = 0; i < 10'000; ++i) {
    bytes += "h\1h\0\x8c\6latin1\x86R"_s;
    dicts += "}h\0Ns"_s;
  }
  CHECK(refusal_of_pickle(bytes + "t.").find("decoded to more bytes") != std::string::npos);
  CHECK(refusal_of_pickle(dicts + "t.").find("repeated values would expand") != std::string::npos);
}

TEST_CASE("pickle: sets made of one list do not share later additions") {
  // There is room for four items, and three are used.
  const std::string list = "]K\1aK\2aK\3aq\0"_s;
  const auto with = [](char item) { return "cbuiltins\nset\nh\0\x85R(K"_s + item + "\x90"; };
  const std::string bytes = list + "0" + with(10) + with(20) + "\x86.";
  const Values parsed = read(std::as_bytes(std::span(bytes)), "file");
  const Value::Items sets = parsed.root().items;
  REQUIRE(sets.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    REQUIRE(sets[i]->items.size() == 4);
    CHECK(sets[i]->items[2]->integer == 3);
    CHECK(sets[i]->items[3]->integer == (i == 0 ? 10 : 20));
  }
}

TEST_CASE("pickle: a reader may allow its own globals") {
  const std::string bytes = "cmine\nThing\n(K\1tR}X\1\0\0\0aK\2sb."_s;
  CHECK(refusal_of_pickle(bytes).find("mine.Thing is not allowed") != std::string::npos);
  const Values parsed =
      read(std::as_bytes(std::span(bytes)), "file",
           [](std::string_view module, std::string_view) { return module == "mine"; });
  const Value& thing = parsed.root();
  CHECK(thing.is_object_of("mine", "Thing"));
  CHECK(thing.describe() == "a mine.Thing object");
  REQUIRE(thing.find("a") != nullptr);
  CHECK(thing.find("a")->integer == 2);
  CHECK(thing.find("b") == nullptr);
  CHECK(thing.items[1]->items[0]->integer == 1);
}
