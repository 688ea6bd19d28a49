// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/documents/document.hpp"
#include "acc/settings/settings.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace acc::documents {
namespace {

using namespace std::string_view_literals;

// Files are read as PyYAML reads them (YAML 1.1), since that is what Accelerate uses. yaml-cpp
// leaves the types of scalars to the caller.

constexpr auto kText = "tag:yaml.org,2002:str"sv;

// Booleans of YAML 1.1. Single letters (y, n) are strings, as in PyYAML.
constexpr std::array kTrue = {"yes"sv, "true"sv, "on"sv};
constexpr std::array kFalse = {"no"sv, "false"sv, "off"sv};

/// True if `text` is one of the words in lower case, title case or upper case: `no`, `No` and `NO`
/// are booleans, `nO` is a string.
bool is_word(std::string_view text, const auto& words) {
  const std::string small = lower(text);
  if (std::ranges::find(words, std::string_view(small)) == words.end()) {
    return false;
  }
  std::string title = small;
  title[0] = upper(title.substr(0, 1))[0];
  return text == small || text == title || text == upper(text);
}

/// True for the numbers `1_000` and `0x10` of YAML 1.1. No setting accepts them, but they must not
/// be taken for strings.
bool is_grouped_or_based(std::string_view text) {
  text.remove_prefix(text.starts_with('-') || text.starts_with('+') ? 1 : 0);
  const bool based = text.starts_with("0x") || text.starts_with("0b");
  const std::string_view digits = text.substr(based ? 2 : 0);
  constexpr std::string_view kHexadecimal = "0123456789abcdefABCDEF_";
  const std::string_view allowed = text.starts_with("0x")   ? kHexadecimal
                                   : text.starts_with("0b") ? std::string_view("01_")
                                                            : std::string_view("0123456789_.");
  return !digits.empty() && digits.front() != '_' && digits.front() != '.' &&
         digits.find_first_not_of(allowed) == std::string_view::npos &&
         std::ranges::count(digits, '.') <= 1;
}

/// Returns the octal value of a number such as 010, which is 8 in YAML 1.1; nothing if the number
/// does not begin with 0, or is the same in decimal.
std::optional<std::int64_t> octal(std::string_view text) {
  const bool has_sign = text.starts_with('-') || text.starts_with('+');
  const std::string_view digits = text.substr(has_sign ? 1 : 0);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 8);
  const bool is_octal =
      digits.starts_with('0') && error == std::errc() && end == digits.data() + digits.size();
  return is_octal && value >= 8 ? std::optional(text.starts_with('-') ? -value : value)
                                : std::nullopt;
}

/// Converts yaml-cpp's nodes to Nodes. Bounds depth and number of values, because aliases can make
/// a small file expand without limit or contain itself.
class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  [[nodiscard]] Node read(const YAML::Node& yaml, const std::string& where) {
    if (++count_ > kMaxValues) {
      throw Error(Errc::config, where + ": more than " + std::to_string(kMaxValues) +
                                    " values, the limit for a file with its aliases expanded");
    }
    if (++depth_ > kMaxDepth) {
      throw Error(Errc::config, where + ": more than " + std::to_string(kMaxDepth) +
                                    " levels of values, or an alias inside its own anchor");
    }
    Node node;
    node.where = where;
    check_tag(yaml, where);
    if (yaml.IsScalar()) {
      read_scalar(yaml, node);
    } else if (yaml.IsSequence()) {
      node.kind = Node::Kind::list;
      for (const auto& item : yaml) {
        node.items.push_back(read(item, place(item.Mark())));
      }
    } else if (yaml.IsMap()) {
      read_map(yaml, node);
    }
    --depth_;
    return node;
  }

  [[nodiscard]] std::string place(const YAML::Mark& mark) const { return place(mark.line); }
  [[nodiscard]] std::string place(int line) const { return file_ + ":" + std::to_string(line + 1); }

 private:
  /// Refuses tags that give a value another meaning than its text has, such as `!!binary aGk=`.
  static void check_tag(const YAML::Node& yaml, const std::string& where) {
    constexpr std::array kKnown = {
        ""sv,  // yaml-cpp's tags of values without one
        "?"sv,
        "!"sv,
        kText,
        "tag:yaml.org,2002:int"sv,
        "tag:yaml.org,2002:float"sv,
        "tag:yaml.org,2002:bool"sv,
        "tag:yaml.org,2002:map"sv,
        "tag:yaml.org,2002:seq"sv,
    };
    if (std::ranges::find(kKnown, std::string_view(yaml.Tag())) == kKnown.end()) {
      throw Error(Errc::config, where + ": the tag " + yaml.Tag() +
                                    " is not supported; write the value without it");
    }
  }

  static void read_scalar(const YAML::Node& yaml, Node& node) {
    node.text = yaml.Scalar();
    node.kind = Node::Kind::string;
    if (yaml.Tag() == "!" || yaml.Tag() == kText) {  // "!" is yaml-cpp's tag of a quoted scalar
      return;
    }
    if (const auto value = octal(node.text)) {
      throw Error(Errc::config, node.where + ": " + node.text + " is octal in YAML 1.1, which is " +
                                    std::to_string(*value) + "; write " + std::to_string(*value) +
                                    ", or \"" + node.text + "\"");
    }
    if (is_word(node.text, kTrue) || is_word(node.text, kFalse)) {
      node.kind = Node::Kind::boolean;
      node.text = is_word(node.text, kTrue) ? "true" : "false";
    } else if (settings::parse_real(node.text) || is_grouped_or_based(node.text)) {
      node.kind = Node::Kind::number;
    }
  }

  void read_map(const YAML::Node& yaml, Node& node) {
    node.kind = Node::Kind::map;
    Node merged = Node::map();
    std::unordered_map<std::string, std::string> places;  // of the keys
    for (const auto& entry : yaml) {
      const std::string where = place(entry.first.Mark());
      if (!entry.first.IsScalar()) {
        throw Error(Errc::config, where + ": a key must be a word");
      }
      const std::string& key = entry.first.Scalar();
      if (key == "<<" && entry.first.Tag() == "?") {  // a quoted "<<" is an ordinary key
        merge(read(entry.second, where), merged);
        continue;
      }
      const auto [first, is_new] = places.try_emplace(key, where);
      if (!is_new) {
        throw Error(Errc::config,
                    where + ": key \"" + key + "\" is given twice, first at " + first->second);
      }
      node.entries.emplace_back(key, read(entry.second, where));
    }
    merge(std::move(merged), node);
  }

  /// Adds the entries of a merge key `<<` (YAML 1.1). Keys of the map itself have precedence, then
  /// the first merged map that has the key.
  static void merge(Node from, Node& into) {
    if (from.kind == Node::Kind::list) {
      for (Node& item : from.items) {
        merge(std::move(item), into);
      }
      return;
    }
    if (from.kind != Node::Kind::map) {
      throw Error(Errc::config, from.where + ": << must name a block, or a list of blocks");
    }
    std::unordered_set<std::string> keys;
    for (const auto& [key, value] : into.entries) {
      keys.insert(key);
    }
    for (auto& [key, value] : from.entries) {
      if (keys.insert(key).second) {
        into.entries.emplace_back(std::move(key), std::move(value));
      }
    }
  }

  static constexpr int kMaxDepth = 64;
  static constexpr int kMaxValues = 100'000;  // nested aliases multiply ("billion laughs")

  std::string file_;
  int depth_ = 0;
  int count_ = 0;
};

/// Returns the number, from 0, of the first line that is indented with a tab.
std::optional<int> line_with_tab(const std::string& text) {
  int number = 0;
  for (const std::string_view line : split(text, '\n')) {
    if (line.substr(0, line.find_first_not_of(" \t")).find('\t') != std::string_view::npos) {
      return number;
    }
    ++number;
  }
  return std::nullopt;
}

std::string not_valid(const YAML::Exception& error, const std::string& text, const Reader& reader) {
  const std::string so = ": not valid YAML: ";
  if (const auto line = line_with_tab(text)) {
    return reader.place(*line) + so + "a tab in the indentation; use spaces";
  }
  return reader.place(error.mark.line) + so + error.msg;
}

}  // namespace

Document parse_yaml(const std::string& text, const std::filesystem::path& path) {
  Reader reader(path.string());
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.size() > 1 && !documents[1].IsNull()) {
      throw Error(Errc::config, reader.place(documents[1].Mark()) +
                                    ": a second YAML document begins here; a configuration file "
                                    "must have only one");
    }
    const YAML::Node yaml = documents.empty() ? YAML::Node() : documents.front();
    Document document{path, reader.read(yaml, path.string() + ":1")};
    if (document.root.kind == Node::Kind::null) {
      document.root.kind = Node::Kind::map;
    }
    if (document.root.kind != Node::Kind::map) {
      throw Error(Errc::config, document.root.where + ": expected lines of \"key: value\"");
    }
    return document;
  } catch (const YAML::Exception& error) {
    throw Error(Errc::config, not_valid(error, text, reader));
  }
}

}  // namespace acc::documents
