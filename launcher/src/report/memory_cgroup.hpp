#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace acc::launcher {

/// A control group of the memory controller, of cgroup version 1 or 2. `root`: prefix of all paths;
/// "/", except in tests.
class MemoryCgroup {
 public:
  /// Opens the group of this process.
  explicit MemoryCgroup(const std::filesystem::path& root);
  /// Opens the group `name`, as written in the kernel log ("/job/limited").
  MemoryCgroup(const std::filesystem::path& root, const std::string& name);

  /// Returns the number of processes of this group that the kernel has killed because it was out of
  /// memory (the counter oom_kill). Empty if there is no such counter.
  [[nodiscard]] std::optional<std::int64_t> oom_kills() const;

  /// Returns the memory limit in bytes of this group, or of the nearest group above it that has
  /// one. Empty if there is no limit.
  [[nodiscard]] std::optional<std::int64_t> limit() const;

 private:
  std::filesystem::path folder_;
};

}  // namespace acc::launcher
