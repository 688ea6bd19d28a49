// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "supervision/worker_record.hpp"

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace acc::launcher::report {

/// Finds the core dumps that the kernel writes after this object was constructed (core(5)).
class CoreDumps {
 public:
  explicit CoreDumps(std::filesystem::path root);

  /// Returns where the core dump of a killed worker is, or why there is none. Empty if the worker's
  /// signal does not produce core dumps. `folder`: the worker's initial working directory, in which
  /// relative patterns are searched; it may have changed since.
  [[nodiscard]] std::string cause(const supervision::WorkerRecord& worker,
                                  const std::filesystem::path& folder) const;

 private:
  std::filesystem::path root_;               ///< prefix of paths in /proc: "/", except in tests
  std::filesystem::file_time_type made_at_;  ///< older files belong to other processes
};

/// Translates kernel.core_pattern into a glob(7) pattern for the dump of process `pid`. Unknown
/// parts, such as the time of the dump, become "*". `adds_pid`: the value of kernel.core_uses_pid.
std::string core_file_glob(const std::string& pattern, pid_t pid, bool adds_pid);

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

/// Explains from kernel data why workers ended: out of memory (OOM) kills, core dumps, signals with
/// one usual cause. Construct it before the workers start, because some facts are the growth of a
/// kernel counter. `root`: prefix of all paths in /proc, /sys and /dev; "/", except in tests.
class KernelFacts {
 public:
  explicit KernelFacts(const std::filesystem::path& root = "/")
      : root_(root), oom_kills_(root), core_dumps_(root) {}

  /// Returns a phrase for the report: why a worker was killed, where its core dump is or why there
  /// is none, or what a worker that cannot be killed waits for. Empty if nothing is known.
  /// `working_directory`: the worker's; empty: the launcher's.
  [[nodiscard]] std::string cause(const supervision::WorkerRecord& worker,
                                  const std::string& working_directory) const;

 private:
  std::filesystem::path root_;
  OomKills oom_kills_;
  CoreDumps core_dumps_;
};

}  // namespace acc::launcher::report
