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

/// Returns the parent's pid, or 0. It is the fourth field of /proc/PID/stat (proc(5)). The second
/// field, the name in parentheses, may itself contain spaces and parentheses, so fields are counted
/// from the last `)`.
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

/// Returns the command line without empty words: a daemon that overwrites its arguments with a
/// title leaves many of them.
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
    // Skips acclaunch's own processes. Of another user's process only the command line is readable.
    if (fs::read_symlink(process / "exe", error) != own || error) {
      found.push_back(std::move(words));
    }
    pid = parent_of(process);
  }
  return found;
}

}  // namespace acc::launcher
