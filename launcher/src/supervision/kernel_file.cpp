// SPDX-License-Identifier: Apache-2.0
#include "supervision/kernel_file.hpp"

#include <cinttypes>
#include <cstdio>
#include <fstream>

namespace acc::launcher::supervision {

std::string first_line(const std::filesystem::path& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

std::optional<std::int64_t> number_in(const std::filesystem::path& file, const std::string& word) {
  std::ifstream words(file);
  if (!word.empty()) {
    for (std::string name; words >> name && name != word;) {
    }
  }
  std::int64_t number = 0;
  return words >> number ? std::optional(number) : std::nullopt;
}

std::optional<std::int64_t> pid_namespace(const std::filesystem::path& root) {
  std::error_code unknown;
  const std::string link = std::filesystem::read_symlink(root / "proc/self/ns/pid", unknown);
  std::int64_t number = 0;  // "pid:[4026531836]"
  return std::sscanf(link.c_str(), "pid:[%" SCNd64 "]", &number) == 1 ? std::optional(number)
                                                                      : std::nullopt;
}

}  // namespace acc::launcher::supervision
