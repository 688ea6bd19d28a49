#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace acc::launcher {

/// A control group that memory is counted for, of either version. `root` stands before all paths:
/// "/" but in tests.
class MemoryCgroup {
 public:
  /// The one that this process is in.
  explicit MemoryCgroup(const std::filesystem::path& root);
  /// The one of that name, as the kernel's log has it.
  MemoryCgroup(const std::filesystem::path& root, const std::string& name);

  /// Processes of it that the kernel killed for want of memory so far; empty: it does not count.
  [[nodiscard]] std::optional<std::int64_t> oom_kills() const;

  /// Bytes that it and the groups above may have, the nearest limit; empty: any number.
  [[nodiscard]] std::optional<std::int64_t> limit() const;

 private:
  std::filesystem::path folder_;
};

}  // namespace acc::launcher
