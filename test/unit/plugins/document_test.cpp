#include "acc/plugins/document.hpp"

#include "acc/base/error.hpp"

#include <doctest/doctest.h>

namespace acc::plugins {
namespace {

TEST_CASE("YAML 1.1: bare words are booleans, quoted ones are text") {
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

TEST_CASE("both formats keep order, lines and nesting") {
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

TEST_CASE("YAML's << takes over what is not said otherwise") {
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

TEST_CASE("broken files are named with the line") {
  const auto message = [](auto parse, const std::string& text) -> std::string {
    try {
      static_cast<void>(parse(text, "f"));
      return "";
    } catch (const Error& error) {
      CHECK(error.code() == Errc::config);
      return error.what();
    }
  };
  CHECK(message(parse_yaml, "a: 1\nb: [\n").starts_with("f:"));
  CHECK(message(parse_yaml, "a: 1\na: 2\n") == "f:2: key \"a\" is given twice, first at f:1");
  CHECK(message(parse_yaml, "a:\n\tb: 1\n") ==
        "f:2: not valid YAML: a tab in the indentation; use blanks");
  CHECK(message(parse_yaml, "a: 1\n---\na: 2\n") ==
        "f:3: a second document begins here; a configuration is one");
  CHECK(message(parse_yaml, "a: 1\n<<: 2\n") == "f:2: << must name a block, or a list of blocks");
  CHECK(message(parse_yaml, "a: &a\n  b: *a\n") ==
        "f:2: too many values, or an alias inside its own anchor");
  std::string bomb = "a0: &a0 [x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string last = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + last + ", " + last +
            ", " + last + ", " + last + "]\n";
  }
  CHECK(message(parse_yaml, bomb).ends_with("too many values, or an alias inside its own anchor"));
  CHECK(message(parse_json, "{\"a\": 1,\n\"a\": 2}") ==
        "f:2: key \"a\" is given twice, first at f:1");
  CHECK(message(parse_json, "{\"a\": 1,\n}").starts_with("f:2: not valid JSON"));
  CHECK(message(parse_json, "").starts_with("f:1: not valid JSON"));
  CHECK_THROWS_AS(static_cast<void>(load_document("/no/such/file.yaml")), Error);
  CHECK_THROWS_AS(static_cast<void>(load_document("/tmp")), Error);
}

}  // namespace
}  // namespace acc::plugins
