// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace acc::launcher::report {

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

/// Detects processes that the kernel killed because it was out of memory (OOM), from the time of
/// construction on. The kernel log names each killed process. Where it is not readable, as in most
/// containers, only counters of such kills are available.
class OomKills {
 public:
  explicit OomKills(std::filesystem::path root);

  /// Explains the SIGKILL of process `pid`, which the launcher did not send: "killed by …" if the
  /// log names the process, "probably killed by …" if the counter of its control group has grown,
  /// "perhaps killed by …" if only the machine's counter has. `peak_memory`: its peak resident
  /// memory in bytes; 0 if unknown.
  [[nodiscard]] std::string cause(pid_t pid, std::int64_t peak_memory) const;

 private:
  [[nodiscard]] const std::string& log() const;
  [[nodiscard]] std::string logged_kill(pid_t pid) const;
  [[nodiscard]] std::string counted_kill(std::int64_t peak_memory) const;
  [[nodiscard]] std::optional<std::int64_t> machine_kills() const;
  [[nodiscard]] std::string limit_of(std::string_view kill, std::string_view reason) const;

  std::filesystem::path root_;
  /// The kernel log /dev/kmsg; empty if it may not be read, or if this process is in a pid
  /// namespace other than the one whose pids the log contains.
  UniqueFd log_file_;
  mutable std::string log_;  ///< records read so far
  MemoryCgroup cgroup_;
  std::optional<std::int64_t> cgroup_kills_before_;
  std::optional<std::int64_t> machine_kills_before_;
};

}  // namespace acc::launcher::report
