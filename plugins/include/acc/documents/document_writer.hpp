// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/document.hpp"

#include <filesystem>
#include <string>

namespace acc::documents {

enum class KeyOrder { as_given, sorted };

/// Formats a map as YAML 1.1. PyYAML reads back the same values and types: a text such as no, 12 or
/// 1:30 is quoted. `sorted` sorts the keys at every level, as `accelerate config` does. Comments of
/// the original file are lost, because nodes do not hold them.
std::string to_yaml(const Node& root, KeyOrder order = KeyOrder::sorted);

/// Formats a map as JSON with an indentation of two spaces. Numbers keep the spelling of the node:
/// 5e8 stays 5e8.
std::string to_json(const Node& root);

/// Formats a map for a file of this name, so that `load_document` can read it: JSON for `.json`,
/// else YAML.
std::string to_text(const Node& root, const std::filesystem::path& path);

}  // namespace acc::documents
