#pragma once

#include "acc/plugins/document.hpp"

#include <filesystem>
#include <string>

namespace acc::plugins {

enum class KeyOrder { as_given, sorted };

/// A map as YAML 1.1 that PyYAML reads back with the same values and types: a text such as no, 12
/// or 1:30 is quoted. Sorted at every level, as Accelerate's questionnaire writes. Comments of a
/// file that the map came from are not in it.
std::string to_yaml(const Node& root, KeyOrder order = KeyOrder::sorted);

/// A map as JSON, two blanks a level. Numbers stand as in the node: 5e8 stays 5e8.
std::string to_json(const Node& root);

/// In the form in which `load_document` reads a file of that name: `.json` as JSON, else YAML.
std::string to_text(const Node& root, const std::filesystem::path& path);

}  // namespace acc::plugins
