// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::documents {

/// A value of a configuration file and its place in the file. The same type serves YAML and JSON.
struct Node {
  enum class Kind { null, boolean, number, string, list, map };

  Kind kind = Kind::null;
  /// The text of a scalar as it is in the file; a boolean is always `true` or `false`.
  std::string text;
  std::vector<Node> items;                            ///< items of a list
  std::vector<std::pair<std::string, Node>> entries;  ///< entries of a map, in file order
  std::string where;                                  ///< `config.yaml:12`

  static Node string(std::string text);
  static Node boolean(bool value);
  static Node number(std::int64_t value);
  static Node number(std::string text);  ///< keeps the spelling: "5e8"
  static Node map(std::vector<std::pair<std::string, Node>> entries = {});

  /// Returns the value of `key` in a map, or nullptr.
  [[nodiscard]] const Node* find(std::string_view key) const;
  /// Replaces the value of `key` in a map, or appends it. Returns the stored value.
  Node& set(std::string_view key, Node value);
  void remove(std::string_view key);
  [[nodiscard]] bool is_scalar() const { return kind != Kind::list && kind != Kind::map; }
  /// True for null, `[]` and `{}`. Such a value counts as "not given".
  [[nodiscard]] bool is_empty() const;
};

/// A parsed file. The root is a map.
struct Document {
  std::filesystem::path path;
  Node root;
};

/// Parse the text of a file; `path` is used in messages only. Throw Error(config) with file and
/// line for a syntax error, for a key that is given twice, and for a root that is not a map. An
/// empty YAML file is an empty map.
Document parse_yaml(const std::string& text, const std::filesystem::path& path);
Document parse_json(const std::string& text, const std::filesystem::path& path);

/// Reads and parses a file or a pipe (see `read_input_file`). A file name that ends in `.json`
/// means JSON, any other means YAML. Throws Error(not_found) or Error(config).
Document load_document(const std::filesystem::path& path);

}  // namespace acc::documents
