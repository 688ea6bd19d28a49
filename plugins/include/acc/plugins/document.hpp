#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::plugins {

/// A value of a configuration file with the place where it stands, whatever the file's format.
struct Node {
  enum class Kind { null, boolean, number, string, list, map };

  Kind kind = Kind::null;
  /// Of scalars: as written, but a boolean is `true` or `false` in either format.
  std::string text;
  std::vector<Node> items;
  std::vector<std::pair<std::string, Node>> entries;  ///< of a map, in file order
  std::string where;                                  ///< `config.yaml:12`

  static Node string(std::string text);
  static Node boolean(bool value);
  static Node number(std::int64_t value);
  static Node number(std::string text);  ///< as it shall be written: "5e8"
  static Node map(std::vector<std::pair<std::string, Node>> entries = {});

  [[nodiscard]] const Node* find(std::string_view key) const;
  /// Of a map: replaces the value of `key`, or adds it as the last. Returns the value put there.
  Node& set(std::string_view key, Node value);
  void remove(std::string_view key);
  [[nodiscard]] bool is_scalar() const { return kind != Kind::list && kind != Kind::map; }
  /// Null, `[]` and `{}`: nothing is said.
  [[nodiscard]] bool is_empty() const;
};

/// A parsed file. The root is a map.
struct Document {
  std::filesystem::path path;
  Node root;
};

/// Parse a file's text; `path` is for messages. Throw Error(config) with file and line for broken
/// syntax, a key given twice, or a root that is no map (an empty YAML file is an empty map).
Document parse_yaml(const std::string& text, const std::filesystem::path& path);
Document parse_json(const std::string& text, const std::filesystem::path& path);

/// Reads a file or a pipe (see `read_input_file`): `.json` as JSON, everything else as YAML. Throws
/// Error(not_found) or Error(config).
Document load_document(const std::filesystem::path& path);

}  // namespace acc::plugins
