#include "host/ancestors.hpp"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The fourth word of stat, behind a name in parentheses that may hold anything. 0: none.
pid_t parent_of(const fs::path& process) {
  const std::string stat = text_of(process / "stat");
  const auto name_end = stat.rfind(')');
  char state = 0;
  pid_t parent = 0;
  if (name_end != std::string::npos) {
    std::istringstream(stat.substr(name_end + 1)) >> state >> parent;
  }
  return parent;
}

/// Words that are empty are left out: a daemon that writes its title over its words leaves many.
std::vector<std::string> words_of(const fs::path& process) {
  std::vector<std::string> words;
  std::istringstream text(text_of(process / "cmdline"));
  for (std::string word; std::getline(text, word, '\0');) {
    if (!word.empty()) {
      words.push_back(std::move(word));
    }
  }
  return words;
}

}  // namespace

std::vector<std::vector<std::string>> detect_ancestors() {
  constexpr std::size_t kMost = 16;
  const fs::path proc = "/proc";
  std::error_code error;
  const fs::path own = fs::read_symlink(proc / "self/exe", error);
  std::vector<std::vector<std::string>> found;
  pid_t pid = ::getppid();
  for (std::size_t seen = 0; seen < kMost && pid > 0; ++seen) {
    const fs::path process = proc / std::to_string(pid);
    auto words = words_of(process);
    if (words.empty()) {
      break;
    }
    if (fs::read_symlink(process / "exe", error) != own || error) {
      found.push_back(std::move(words));
    }
    pid = parent_of(process);
  }
  return found;
}

}  // namespace acc::launcher
