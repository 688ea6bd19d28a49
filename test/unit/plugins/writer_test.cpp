// SPDX-License-Identifier: Apache-2.0
#include "acc/base/atomic_file.hpp"
#include "acc/documents/document_writer.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <algorithm>

namespace acc::documents {
namespace {

bool same(const Node& a, const Node& b) {
  const auto same_entry = [](const auto& x, const auto& y) {
    return x.first == y.first && same(x.second, y.second);
  };
  return a.kind == b.kind && a.text == b.text && std::ranges::equal(a.items, b.items, same) &&
         std::ranges::equal(a.entries, b.entries, same_entry);
}

Node list(std::vector<Node> items) {
  Node node;
  node.kind = Node::Kind::list;
  node.items = std::move(items);
  return node;
}

Node sample() {
  return Node::map({{"b", Node::string("no")},
                    {"a", Node::boolean(false)},
                    {"nothing", Node{}},
                    {"number", Node::number(12)},
                    {"none", list({})},
                    {"block", Node::map({{"z", Node::string("12")}, {"empty", Node::map()}})},
                    {"list", list({Node::string("x"), Node::map({{"k", Node::number(1)}})})}});
}

TEST_CASE("writer: YAML keys are sorted, as `accelerate config` writes them") {
  CHECK(to_yaml(sample()) ==
        "a: false\n"
        "b: 'no'\n"
        "block:\n"
        "  empty: {}\n"
        "  z: '12'\n"
        "list:\n"
        "  - x\n"
        "  - k: 1\n"
        "none: []\n"
        "nothing: null\n"
        "number: 12\n");
}

TEST_CASE("writer: JSON keeps order and spelling of numbers") {
  Node root = Node::map(
      {{"zero_optimization", Node::map({{"reduce_bucket_size", Node::number(std::string("5e8"))}})},
       {"auto", Node::string("say \"a\\b\"\n")},
       {"none", list({})},
       {"betas", list({Node::number("0.9"), Node::number("0.999")})}});
  CHECK(to_json(root) ==
        "{\n"
        "  \"zero_optimization\": {\n"
        "    \"reduce_bucket_size\": 5e8\n"
        "  },\n"
        "  \"auto\": \"say \\\"a\\\\b\\\"\\n\",\n"
        "  \"none\": [],\n"
        "  \"betas\": [\n"
        "    0.9,\n"
        "    0.999\n"
        "  ]\n"
        "}\n");
  CHECK(same(parse_json(to_json(root), "f.json").root, root));
}

TEST_CASE("writer: written files read back unchanged, in both formats") {
  CHECK(same(parse_yaml(to_yaml(sample(), KeyOrder::as_given), "f.yaml").root, sample()));
  CHECK(same(parse_json(to_json(sample()), "f.json").root, sample()));
}

TEST_CASE("writer: a text stays a text in YAML even if it looks like another type") {
  for (const std::string text : {"no",          "NO",    "Yes",
                                 "on",          "true",  "null",
                                 "~",           "",      "12",
                                 "-3",          "1e8",   "5e-5",
                                 "0x1f",        "010",   "1:30",
                                 "1_000",       ".5",    "1.",
                                 ".inf",        ".nan",  "2024-01-02",
                                 "=",           "<<",    "nO",
                                 "y",           "none",  "10.0.0.1",
                                 "host:29500",  "a: b",  "a #b",
                                 "#a",          "- a",   "-",
                                 "?",           "*a",    "&a",
                                 "!a",          "%a",    "@a",
                                 "`a`",         "[a",    "{a}",
                                 "'a'",         "\"a\"", " a",
                                 "a ",          "a\nb",  "a\tb",
                                 "a\\b",        "0,1,2", ".*\\.mlp\\.(gate|up)$",
                                 "caf\xc3\xa9", "---",   "..."}) {
    CAPTURE(text);
    const Document document = parse_yaml(to_yaml(Node::map({{"k", Node::string(text)}})), "f");
    CHECK(document.root.find("k")->kind == Node::Kind::string);
    CHECK(document.root.find("k")->text == text);
  }
}

TEST_CASE(
    "writer: PyYAML reads YAML numbers back as numbers, with decimal point and signed exponent") {
  for (const auto& [written, expected] : {std::pair{"5e8", "5.0e+08"},
                                          {"1e-05", "1.0e-05"},
                                          {"2.5e8", "2.5e+08"},
                                          {"0.1", "0.1"},
                                          {"12", "12"},
                                          {"-1", "-1"}}) {
    const Node root = Node::map({{"k", Node::number(std::string(written))}});
    CHECK(to_yaml(root) == "k: " + std::string(expected) + "\n");
  }
}

TEST_CASE("nodes: set replaces a value in place or appends it; remove deletes it") {
  Node root = Node::map({{"a", Node::number(1)}, {"b", Node::number(2)}});
  root.set("a", Node::number(3));
  root.set("c", Node::map()).set("d", Node::boolean(true));
  root.remove("b");
  CHECK(to_yaml(root) == "a: 3\nc:\n  d: true\n");
}

TEST_CASE("write_file: writes complete files, and replaces an existing one only with overwrite") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "config.yaml";
  write_file(path, "a: 1\n", Overwrite::no);
  CHECK(test::file_text(path) == "a: 1\n");
  CHECK(test::contains(test::refusal([&] { write_file(path, "a: 2\n", Overwrite::no); }),
                       path.string() + " exists"));
  CHECK(test::file_text(path) == "a: 1\n");
  write_file(path, "a: 2\n", Overwrite::yes);
  CHECK(test::file_text(path) == "a: 2\n");
  CHECK_THROWS_AS(write_file(folder.path() / "no" / "f", "", Overwrite::no), Error);
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 1);
}

}  // namespace
}  // namespace acc::documents
