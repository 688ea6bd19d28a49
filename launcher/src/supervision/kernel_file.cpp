#include "supervision/kernel_file.hpp"

#include <fstream>

namespace acc::launcher {

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

}  // namespace acc::launcher
