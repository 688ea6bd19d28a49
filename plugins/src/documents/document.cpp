// SPDX-License-Identifier: Apache-2.0
#include "acc/documents/document.hpp"

#include "acc/base/input_file.hpp"

#include <algorithm>

namespace acc::documents {

namespace {

Node scalar(Node::Kind kind, std::string text) {
  Node node;
  node.kind = kind;
  node.text = std::move(text);
  return node;
}

}  // namespace

Node Node::string(std::string text) {
  return scalar(Kind::string, std::move(text));
}

Node Node::boolean(bool value) {
  return scalar(Kind::boolean, value ? "true" : "false");
}

Node Node::number(std::int64_t value) {
  return scalar(Kind::number, std::to_string(value));
}

Node Node::number(std::string text) {
  return scalar(Kind::number, std::move(text));
}

Node Node::map(std::vector<std::pair<std::string, Node>> entries) {
  Node node;
  node.kind = Kind::map;
  node.entries = std::move(entries);
  return node;
}

Node& Node::set(std::string_view key, Node value) {
  const auto found = std::ranges::find(entries, key, &std::pair<std::string, Node>::first);
  if (found != entries.end()) {
    return found->second = std::move(value);
  }
  return entries.emplace_back(key, std::move(value)).second;
}

void Node::remove(std::string_view key) {
  std::erase_if(entries, [&](const auto& entry) { return entry.first == key; });
}

const Node* Node::find(std::string_view key) const {
  const auto found = std::ranges::find(
      entries, key, [](const auto& entry) -> const auto& { return entry.first; });
  return found == entries.end() ? nullptr : &found->second;
}

bool Node::is_empty() const {
  return kind == Kind::null || (kind == Kind::list && items.empty()) ||
         (kind == Kind::map && entries.empty());
}

Document load_document(const std::filesystem::path& path) {
  const std::string text = read_input_file(path);
  return path.extension() == ".json" ? parse_json(text, path) : parse_yaml(text, path);
}

}  // namespace acc::documents
