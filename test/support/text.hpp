// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/text.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace acc::test {

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace acc::test
