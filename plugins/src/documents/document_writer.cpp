// SPDX-License-Identifier: Apache-2.0
#include "acc/documents/document_writer.hpp"

#include "acc/base/json.hpp"
#include "acc/settings/settings.hpp"

#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <regex>

namespace acc::documents {
namespace {

bool matches_regex(const std::string& text, const std::regex& pattern) {
  return std::regex_match(text, pattern);
}

/// True if PyYAML reads a plain text as a YAML 1.1 number: an exponent needs a decimal point and a
/// sign, and 1:30 is 90 in base 60.
bool is_yaml_number(const std::string& text) {
  static const std::regex kInteger(
      "[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*(:[0-5]?[0-9])*)");
  static const std::regex kReal(
      "[-+]?([0-9][0-9_]*\\.[0-9_]*([eE][-+][0-9]+)?|\\.[0-9][0-9_]*([eE][-+][0-9]+)?|"
      "[0-9][0-9_]*(:[0-5]?[0-9])+\\.[0-9_]*|\\.(inf|Inf|INF))|\\.(nan|NaN|NAN)");
  return matches_regex(text, kInteger) || matches_regex(text, kReal);
}

/// True if a text must be quoted because a YAML reader would take it for another type.
bool needs_quotes(const std::string& text) {
  static const std::regex kWord(
      "yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF|"
      "~|null|Null|NULL|=|<<|");
  static const std::regex kDate("[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}.*");
  // parse_real: numbers of acclaunch's own reader and of YAML 1.2, such as 5e8.
  return matches_regex(text, kWord) || matches_regex(text, kDate) || is_yaml_number(text) ||
         settings::parse_real(text);
}

/// Returns a number in a spelling that PyYAML reads as a number: 5e8, a text to PyYAML, becomes
/// 5.0e+08.
std::string yaml_number(const std::string& text) {
  const auto value = settings::parse_real(text);
  if (is_yaml_number(text) || !value) {
    return text;
  }
  std::array<char, 40> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), *value,
                                 std::chars_format::scientific);
  std::string printed(buffer.data(), end.ptr);
  if (printed.find('.') == std::string::npos) {
    printed.insert(printed.find('e'), ".0");
  }
  return printed;
}

/// Writes YAML with yaml-cpp's emitter, which does not quote texts such as no or 12 by itself.
class YamlWriter {
 public:
  explicit YamlWriter(KeyOrder order) : order_(order) {}

  std::string write(const Node& root) {
    emitter_.SetNullFormat(YAML::LowerNull);
    emit(root);
    return std::string(emitter_.c_str()) + "\n";
  }

 private:
  void emit(const Node& node) {
    switch (node.kind) {
      case Node::Kind::null: emitter_ << YAML::Null; break;
      case Node::Kind::boolean: emitter_ << node.text; break;
      case Node::Kind::number: emitter_ << yaml_number(node.text); break;
      case Node::Kind::string: emit_text(node.text); break;
      case Node::Kind::list: emit_list(node); break;
      case Node::Kind::map: emit_map(node); break;
    }
  }

  void emit_text(const std::string& text) {
    if (needs_quotes(text)) {
      emitter_ << YAML::SingleQuoted;
    }
    emitter_ << text;
  }

  void emit_list(const Node& node) {
    emitter_ << (node.items.empty() ? YAML::Flow : YAML::Block) << YAML::BeginSeq;
    for (const Node& item : node.items) {
      emit(item);
    }
    emitter_ << YAML::EndSeq;
  }

  void emit_map(const Node& node) {
    std::vector<const std::pair<std::string, Node>*> entries;
    for (const auto& entry : node.entries) {
      entries.push_back(&entry);
    }
    if (order_ == KeyOrder::sorted) {
      std::ranges::stable_sort(entries, {}, [](const auto* entry) { return entry->first; });
    }
    emitter_ << (entries.empty() ? YAML::Flow : YAML::Block) << YAML::BeginMap;
    for (const auto* entry : entries) {
      emitter_ << YAML::Key;
      emit_text(entry->first);
      emitter_ << YAML::Value;
      emit(entry->second);
    }
    emitter_ << YAML::EndMap;
  }

  KeyOrder order_;
  YAML::Emitter emitter_;
};

// JSON is written by hand, because nlohmann::json would change the spelling of numbers. Only
// strings are left to it.

/// Returns a number in a spelling that is valid JSON: YAML's .5 and +1 are not.
std::string json_number(const std::string& text) {
  const auto value = settings::parse_real(text);
  return is_json(text) || !value ? text : text_of_json(nlohmann::json(*value));
}

void append_json(const Node& node, const std::string& margin, std::string& out);

/// Appends the items of a list or map between its brackets, one per line.
template <typename Items, typename Append>
void append_items(const Items& items, std::string_view brackets, const std::string& margin,
                  std::string& out, Append append) {
  out += brackets.front();
  for (const auto& item : items) {
    out += (&item == &items.front() ? "\n" : ",\n") + margin + "  ";
    append(item);
  }
  out += items.empty() ? "" : "\n" + margin;
  out += brackets.back();
}

void append_json(const Node& node, const std::string& margin, std::string& out) {
  switch (node.kind) {
    case Node::Kind::null: out += "null"; break;
    case Node::Kind::boolean: out += node.text; break;
    case Node::Kind::number: out += json_number(node.text); break;
    case Node::Kind::string: out += json_quoted(node.text); break;
    case Node::Kind::list:
      append_items(node.items, "[]", margin, out,
                   [&](const Node& item) { append_json(item, margin + "  ", out); });
      break;
    case Node::Kind::map:
      append_items(node.entries, "{}", margin, out, [&](const auto& entry) {
        out += json_quoted(entry.first) + ": ";
        append_json(entry.second, margin + "  ", out);
      });
      break;
  }
}

}  // namespace

std::string to_yaml(const Node& root, KeyOrder order) {
  return YamlWriter(order).write(root);
}

std::string to_json(const Node& root) {
  std::string out;
  append_json(root, "", out);
  return out + "\n";
}

std::string to_text(const Node& root, const std::filesystem::path& path) {
  return path.extension() == ".json" ? to_json(root) : to_yaml(root);
}

}  // namespace acc::documents
