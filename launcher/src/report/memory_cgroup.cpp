#include "report/memory_cgroup.hpp"

#include "supervision/cgroup.hpp"
#include "supervision/kernel_file.hpp"

#include <initializer_list>

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;

constexpr const char* kController = "memory";
// Version 1 writes a number close to 2^63 if there is no limit.
constexpr std::int64_t kNoLimit = std::int64_t{1} << 62;

/// Returns the folder of the group below `root`, using the mount table below `root`.
fs::path folder_of(const fs::path& root, const std::string& name, const std::string& controller) {
  const fs::path folder = cgroup_folder(root / "proc/self/mountinfo", name, controller);
  return folder.empty() ? fs::path() : root / folder.relative_path();
}

/// Returns the number after `word` in one of `files`, of the group in `folder` or of the nearest
/// group above it that has the number. A folder without cgroup.procs is not a group, which ends the
/// search.
std::optional<std::int64_t> nearest(fs::path folder, std::initializer_list<const char*> files,
                                    const std::string& word) {
  std::error_code ignored;
  for (; fs::exists(folder / "cgroup.procs", ignored); folder = folder.parent_path()) {
    for (const char* file : files) {
      const auto number = number_in(folder / file, word);
      if (number && *number < kNoLimit) {
        return number;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

MemoryCgroup::MemoryCgroup(const fs::path& root)
    : folder_(folder_of(root, cgroup_name(root / "proc/self/cgroup"), "")) {
  if (!oom_kills()) {  // the memory controller is not in the version 2 hierarchy
    folder_ = folder_of(root, cgroup_name(root / "proc/self/cgroup", kController), kController);
  }
}

MemoryCgroup::MemoryCgroup(const fs::path& root, const std::string& name)
    : folder_(folder_of(root, name, "")) {
  if (!oom_kills()) {
    folder_ = folder_of(root, name, kController);
  }
}

std::optional<std::int64_t> MemoryCgroup::oom_kills() const {
  return nearest(folder_, {"memory.events", "memory.oom_control"}, "oom_kill");
}

std::optional<std::int64_t> MemoryCgroup::limit() const {
  return nearest(folder_, {"memory.max", "memory.limit_in_bytes"}, "");
}

}  // namespace acc::launcher
