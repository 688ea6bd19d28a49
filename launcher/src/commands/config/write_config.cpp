#include "commands/config/write_config.hpp"

#include "acc/base/error.hpp"
#include "acc/plugins/settings.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace acc::launcher {
namespace {

using plugins::Node;

nlohmann::json to_json(const Node& node) {
  nlohmann::json value;
  switch (node.kind) {
    case Node::Kind::null: break;
    case Node::Kind::boolean: return node.text == "true";
    case Node::Kind::number: return nlohmann::json::parse(node.text);
    case Node::Kind::string: return node.text;
    case Node::Kind::list:
      value = nlohmann::json::array();
      for (const Node& item : node.items) {
        value.push_back(to_json(item));
      }
      break;
    case Node::Kind::map:
      value = nlohmann::json::object();
      for (const auto& [key, item] : node.entries) {
        value[key] = to_json(item);
      }
  }
  return value;
}

bool needs_quotes(const std::string& text) {
  static constexpr std::array<std::string_view, 8> kWords = {"yes",  "no", "true", "false",
                                                             "null", "on", "off",  "~"};
  const bool plain = std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-./,~@").find(c) != std::string_view::npos;
  });
  return text.empty() || !plain || text.front() == '-' || text.front() == '@' ||
         text.front() == ',' || plugins::parse_real(text) ||
         std::ranges::find(kWords, plugins::lower(text)) != kWords.end();
}

std::string yaml_scalar(const Node& node) {
  if (node.kind == Node::Kind::null) {
    return "null";
  }
  if (node.kind != Node::Kind::string || !needs_quotes(node.text)) {
    return node.text;
  }
  std::string quoted = "'";
  for (const char c : node.text) {
    quoted += c == '\'' ? std::string("''") : std::string(1, c);
  }
  return quoted + "'";
}

std::string to_yaml(const Node& map, const std::string& indent) {
  auto entries = map.entries;
  std::ranges::sort(entries, {}, [](const auto& entry) { return entry.first; });
  std::string text;
  for (const auto& [key, node] : entries) {
    text += indent + key + ":";
    if (node.kind == Node::Kind::map) {
      text += node.entries.empty() ? " {}\n" : "\n" + to_yaml(node, indent + "  ");
    } else if (node.kind == Node::Kind::list) {
      text += node.items.empty() ? " []\n" : "\n";
      for (const Node& item : node.items) {
        text += indent + "- " + yaml_scalar(item) + "\n";
      }
    } else {
      text += " " + yaml_scalar(node) + "\n";
    }
  }
  return text;
}

}  // namespace

void write_config(const Node& config, const std::filesystem::path& path) {
  const std::string text =
      path.extension() == ".json" ? to_json(config).dump(2) + "\n" : to_yaml(config, "");
  const std::string temporary = path.string() + ".new-" + std::to_string(::getpid());
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  std::error_code error;
  if (file) {
    std::filesystem::rename(temporary, path, error);
  }
  if (!file || error) {
    const std::string reason = error ? error.message() : std::strerror(errno);
    std::filesystem::remove(temporary, error);
    throw Error(Errc::config, "cannot write " + path.string() + ": " + reason);
  }
}

}  // namespace acc::launcher
