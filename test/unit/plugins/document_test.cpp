// SPDX-License-Identifier: Apache-2.0
#include "acc/documents/document.hpp"

#include "acc/base/error.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace acc::documents {
namespace {

TEST_CASE("YAML 1.1: plain words are booleans, quoted words are text") {
  struct Case {
    std::string written;
    Node::Kind kind;
    std::string text;
  };
  for (const auto& [written, kind, text] : {
           Case{"no", Node::Kind::boolean, "false"},
           Case{"NO", Node::Kind::boolean, "false"},
           Case{"Yes", Node::Kind::boolean, "true"},
           Case{"on", Node::Kind::boolean, "true"},
           Case{"'no'", Node::Kind::string, "no"},
           Case{"\"true\"", Node::Kind::string, "true"},
           Case{"nO", Node::Kind::string, "nO"},
           Case{"y", Node::Kind::string, "y"},
           Case{"12", Node::Kind::number, "12"},
           Case{"'12'", Node::Kind::string, "12"},
           Case{"!!str 12", Node::Kind::string, "12"},
           Case{"!!int '12'", Node::Kind::number, "12"},
           Case{"!!bool 'no'", Node::Kind::boolean, "false"},
           Case{"null", Node::Kind::null, ""},
           Case{"~", Node::Kind::null, ""},
           Case{"", Node::Kind::null, ""},
           Case{"FULL_SHARD # c", Node::Kind::string, "FULL_SHARD"},
           Case{"[]", Node::Kind::list, ""},
           Case{"{}", Node::Kind::map, ""},
       }) {
    CAPTURE(written);
    const Document document = parse_yaml("key: " + written + "\n", "c.yaml");
    const Node* node = document.root.find("key");
    REQUIRE(node != nullptr);
    CHECK(node->kind == kind);
    CHECK(node->text == text);
    CHECK(node->where == "c.yaml:1");
  }
}

TEST_CASE("YAML and JSON keep order, lines and nesting") {
  const Document yaml = parse_yaml("a: 1\n\nb:\n  c: x\n  d: [1, 2]\n", "f.yaml");
  const Document json =
      parse_json("{\"a\": 1,\n\n\"b\": {\n\"c\": \"x\",\n\"d\": [1, 2]}}", "f.json");
  for (const Document* document : {&yaml, &json}) {
    const std::string file = document->path.string();
    const Node& root = document->root;
    REQUIRE(root.entries.size() == 2);
    CHECK(root.entries[0].first == "a");
    CHECK(root.find("a")->kind == Node::Kind::number);
    CHECK(root.find("a")->where == file + ":1");
    const Node* inner = root.find("b");
    CHECK(inner->where == file + ":3");
    CHECK(inner->find("c")->where == file + ":4");
    CHECK(inner->find("c")->text == "x");
    REQUIRE(inner->find("d")->items.size() == 2);
    CHECK(inner->find("d")->items[1].text == "2");
  }
}

TEST_CASE("YAML: << adds the keys that the map does not have itself") {
  const Document document = parse_yaml(
      "one: &one {a: 1, b: 1}\ntwo: &two {b: 2, c: 2}\nboth:\n  c: 3\n  <<: [*one, *two]\n", "f");
  const Node& both = *document.root.find("both");
  REQUIRE(both.entries.size() == 3);
  CHECK(both.find("a")->text == "1");
  CHECK(both.find("b")->text == "1");
  CHECK(both.find("c")->text == "3");
  CHECK(both.find("b")->where == "f:1");
}

TEST_CASE("JSON numbers keep their text") {
  const Document json = parse_json(R"({"a": 5e8, "b": -1, "c": 0.50, "d": true, "e": null})", "f");
  CHECK(json.root.find("a")->text == "5e8");
  CHECK(json.root.find("b")->text == "-1");
  CHECK(json.root.find("c")->text == "0.50");
  CHECK(json.root.find("d")->text == "true");
  CHECK(json.root.find("e")->is_empty());
}

TEST_CASE("an empty YAML file is an empty map") {
  CHECK(parse_yaml("", "f.yaml").root.entries.empty());
  CHECK(parse_yaml("# only words\n", "f.yaml").root.entries.empty());
}

TEST_CASE("errors in broken files name the line") {
  const auto message = [](auto parse, const std::string& text) {
    return test::refusal([&] { return parse(text, "f"); });
  };
  CHECK(message(parse_yaml, "a: 1\nb: [\n").starts_with("f:"));
  CHECK(message(parse_yaml, "a: 1\na: 2\n") == "f:2: key \"a\" is given twice, first at f:1");
  CHECK(message(parse_yaml, "a: 07\nb: -010\n") ==
        "f:2: -010 is octal in YAML 1.1, which is -8; write -8, or \"-010\"");
  CHECK(parse_yaml("a: 07\nb: '010'\nc: 08\nd: 0.10\n", "f").root.entries.size() == 4);
  CHECK(message(parse_yaml, "a: 1\nb: !!binary aGk=\n") ==
        "f:2: the tag tag:yaml.org,2002:binary is not supported; write the value without it");
  CHECK(message(parse_yaml, "a: !x {b: 1}\n").starts_with("f:1: the tag !x is not supported"));
  CHECK(message(parse_yaml, "a:\n\tb: 1\n") ==
        "f:2: not valid YAML: a tab in the indentation; use spaces");
  CHECK(message(parse_yaml, "a: 1\n---\na: 2\n") ==
        "f:3: a second YAML document begins here; a configuration file must have only one");
  CHECK(message(parse_yaml, "a: 1\n<<: 2\n") == "f:2: << must name a block, or a list of blocks");
  CHECK(message(parse_yaml, "a: &a\n  b: *a\n") ==
        "f:2: more than 64 levels of values, or an alias inside its own anchor");
  std::string bomb = "a0: &a0 [x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last + ", " + last +
            ", " + last + ", " + last + "]\n";
  }
  CHECK(message(parse_yaml, bomb)
            .ends_with("more than 100000 values, the limit for a file with its aliases expanded"));
  CHECK(message(parse_json, "{\"a\": 1,\n\"a\": 2}") ==
        "f:2: key \"a\" is given twice, first at f:1");
  CHECK(message(parse_json, "{\"a\": 1,\n}").starts_with("f:2: not valid JSON"));
  CHECK(message(parse_json, "").starts_with("f:1: not valid JSON"));
  CHECK_THROWS_AS(static_cast<void>(load_document("/no/such/file.yaml")), Error);
  CHECK_THROWS_AS(static_cast<void>(load_document("/tmp")), Error);
}

TEST_CASE("a file of 90,000 keys is read, YAML and JSON") {
  constexpr int kKeys = 90'000;
  std::string yaml;
  std::string json;
  for (int i = 0; i < kKeys; ++i) {
    const std::string key = "key" + std::to_string(i);
    yaml += key + ": 1\n";
    json += (i == 0 ? "{\"" : ",\n\"") + key + "\": 1";
  }
  yaml = "base: &base\n  key1: 2\n<<: *base\n" + yaml;
  const Document document = parse_yaml(yaml, "f");
  CHECK(document.root.entries.size() == kKeys + 1);
  CHECK(document.root.find("key1")->text == "1");
  CHECK(parse_json(json + "}", "f").root.entries.size() == kKeys);
}

std::string refusal_of_file(const std::filesystem::path& path) {
  return test::refusal([&] { return load_document(path); });
}

TEST_CASE("an endless file is refused, and so is a FIFO without a writer") {
  const test::TemporaryFolder folder;
  CHECK(refusal_of_file("/dev/zero") ==
        "cannot read /dev/zero: it is larger than 16 MiB, the limit");
  CHECK(load_document("/dev/null").root.entries.empty());
  const std::filesystem::path fifo = folder.path() / "c.yaml";
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(refusal_of_file(fifo) == "cannot read " + fifo.string() +
                                     ": it is a FIFO, and no process has opened it for writing");
  std::thread writer([&] { std::ofstream(fifo) << "a: " << std::string(100'000, 'x') << "\n"; });
  CHECK(load_document(fifo).root.find("a")->text.size() == 100'000);
  writer.join();
}

}  // namespace
}  // namespace acc::documents
