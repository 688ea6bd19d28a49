#include "acc/base/error.hpp"
#include "acc/plugins/document.hpp"
#include "acc/plugins/settings.hpp"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>

namespace acc::plugins {
namespace {

using namespace std::string_view_literals;

// YAML 1.1's words for booleans; single letters are strings, as in PyYAML.
constexpr std::array kTrue = {"yes"sv, "true"sv, "on"sv};
constexpr std::array kFalse = {"no"sv, "false"sv, "off"sv};

/// `no`, `No` and `NO` are booleans, `nO` is a string.
bool is_word(std::string_view text, const auto& words) {
  const std::string small = lower(text);
  if (std::ranges::find(words, std::string_view(small)) == words.end()) {
    return false;
  }
  std::string title = small;
  title[0] = upper(title.substr(0, 1))[0];
  return text == small || text == title || text == upper(text);
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  [[nodiscard]] Node read(const YAML::Node& yaml, const std::string& where) const {
    Node node;
    node.where = where;
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
    return node;
  }

  [[nodiscard]] std::string place(const YAML::Mark& mark) const {
    return file_ + ":" + std::to_string(mark.line + 1);
  }

 private:
  static void read_scalar(const YAML::Node& yaml, Node& node) {
    node.text = yaml.Scalar();
    node.kind = Node::Kind::string;
    if (yaml.Tag() != "?") {  // yaml-cpp's tag of a plain scalar; a quoted one is a string
      return;
    }
    if (is_word(node.text, kTrue) || is_word(node.text, kFalse)) {
      node.kind = Node::Kind::boolean;
      node.text = is_word(node.text, kTrue) ? "true" : "false";
    } else if (parse_real(node.text)) {
      node.kind = Node::Kind::number;
    }
  }

  void read_map(const YAML::Node& yaml, Node& node) const {
    node.kind = Node::Kind::map;
    for (const auto& entry : yaml) {
      const std::string where = place(entry.first.Mark());
      if (!entry.first.IsScalar()) {
        throw Error(Errc::config, where + ": a key must be a word");
      }
      const std::string& key = entry.first.Scalar();
      if (node.find(key) != nullptr) {
        throw Error(Errc::config, where + ": key \"" + key + "\" is given twice, first at " +
                                      node.find(key)->where);
      }
      node.entries.emplace_back(key, read(entry.second, where));
    }
  }

  std::string file_;
};

}  // namespace

Document parse_yaml(const std::string& text, const std::filesystem::path& path) {
  const Reader reader(path.string());
  try {
    const YAML::Node yaml = YAML::Load(text);
    Document document{path, reader.read(yaml, path.string() + ":1")};
    if (document.root.kind == Node::Kind::null) {
      document.root.kind = Node::Kind::map;
    }
    if (document.root.kind != Node::Kind::map) {
      throw Error(Errc::config, document.root.where + ": expected lines of \"key: value\"");
    }
    return document;
  } catch (const YAML::Exception& error) {
    throw Error(Errc::config, reader.place(error.mark) + ": not valid YAML: " + error.msg);
  }
}

}  // namespace acc::plugins
