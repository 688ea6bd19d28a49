#include "acc/plugins/document.hpp"

#include "acc/base/error.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace acc::plugins {

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
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    throw Error(Errc::config, "cannot read " + path.string() + ": it is a folder, not a file");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(Errc::not_found, "cannot read " + path.string() + ": " + std::strerror(errno));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return path.extension() == ".json" ? parse_json(text.str(), path) : parse_yaml(text.str(), path);
}

}  // namespace acc::plugins
