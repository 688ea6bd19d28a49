#pragma once

#include "acc/base/unique_fd.hpp"
#include "report/memory_cgroup.hpp"

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace acc::launcher {

/// What the kernel tells of processes that it killed for want of memory, from now on: in its log,
/// where that may be read, or at least how many there are.
class OomKills {
 public:
  explicit OomKills(std::filesystem::path root);

  /// Whether that is why somebody's SIGKILL ended process `pid`, with how sure that is.
  /// `peak_memory`: bytes it had at most, 0: unknown.
  [[nodiscard]] std::string cause(pid_t pid, std::int64_t peak_memory) const;

 private:
  [[nodiscard]] const std::string& log() const;
  [[nodiscard]] std::string logged_kill(pid_t pid) const;
  [[nodiscard]] std::string counted_kill(std::int64_t peak_memory) const;
  [[nodiscard]] std::optional<std::int64_t> machine_kills() const;
  [[nodiscard]] std::string limit_of(std::string_view kill, std::string_view reason) const;

  std::filesystem::path root_;
  /// The kernel's; empty where it may not be read, or has other numbers than we for processes.
  UniqueFd log_file_;
  mutable std::string log_;  ///< what was read of it so far
  MemoryCgroup cgroup_;
  std::optional<std::int64_t> cgroup_kills_before_;
  std::optional<std::int64_t> machine_kills_before_;
};

}  // namespace acc::launcher
