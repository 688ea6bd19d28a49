// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace acc::launcher::supervision {
/// Fields of /proc/PID/stat (proc_pid_stat(5)).
struct ProcessState {
  std::string name;
  char letter = 0;  ///< the kernel's state code: R, S, D, T, Z, …
  pid_t parent = 0;
};

/// Returns the state of a process; empty if it does not exist. `proc`: mount point of the proc file
/// system.
std::optional<ProcessState> process_state(pid_t pid, const std::filesystem::path& proc = "/proc");

/// What a process has used.
struct ProcessUsage {
  std::chrono::milliseconds cpu{0};
  std::chrono::milliseconds started{0};  ///< since the start of the machine
  std::int64_t resident_bytes = 0;
};
/// Returns nothing if the process does not exist.
std::optional<ProcessUsage> process_usage(pid_t pid, const std::filesystem::path& proc = "/proc");

/// Returns the state in words, with the kernel function that the process waits in if that is
/// readable: "in uninterruptible sleep (nfs_wait_bit_killable)". Empty if it does not exist.
std::string describe_state(pid_t pid, const std::filesystem::path& proc = "/proc");

/// True if `signal` has its default action in the process: its main thread neither catches, ignores
/// nor blocks it. False if that cannot be read.
bool has_default_action(pid_t pid, int signal, const std::filesystem::path& proc = "/proc");

/// Detects processes that stay in uninterruptible sleep (state D) for longer than a limit, such as
/// one that waits for a dead NFS server or a GPU driver. SIGKILL has no effect on them.
class StuckWatch {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StuckWatch(Clock::duration limit, std::filesystem::path proc = "/proc")
      : limit_(limit), proc_(std::move(proc)) {}

  /// Samples a process at time `now`. True if every sample of the last `limit` found it in
  /// uninterruptible sleep, and it did not run between the samples. Call this periodically.
  bool is_stuck(pid_t pid, Clock::time_point now);

 private:
  struct Sleep {
    Clock::time_point since;
    std::string times_run;  ///< number of time slices run before `since` (/proc/PID/schedstat)
  };

  Clock::duration limit_;
  std::filesystem::path proc_;
  std::map<pid_t, Sleep> asleep_;
};

/// Returns the first line of a small file in /proc or /sys; empty if it cannot be read.
std::string first_line(const std::filesystem::path& file);

/// Returns the number that follows `word` in a file with lines such as "MemTotal: 16331 kB" or
/// "oom_kill 3". If `word` is empty, returns the number at the beginning of the file. Returns empty
/// if there is no such number.
std::optional<std::int64_t> number_in(const std::filesystem::path& file, const std::string& word);

/// Returns the inode number of this process's pid namespace; empty if it cannot be read. Pids are
/// unique within one namespace only; a container usually has its own.
std::optional<std::int64_t> pid_namespace(const std::filesystem::path& root = "/");
/// The host's initial pid namespace: PROC_PID_INIT_INO in include/linux/proc_ns.h.
inline constexpr std::int64_t kFirstPidNamespace = 4026531836;

}  // namespace acc::launcher::supervision
