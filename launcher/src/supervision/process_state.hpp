#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace acc::launcher {

/// What /proc/PID/stat says of a process.
struct ProcessState {
  std::string name;
  char letter = 0;  ///< R, S, D, T, Z, …
  pid_t parent = 0;
};

/// Empty when there is no such process. `proc` is where that file system is mounted.
std::optional<ProcessState> process_state(pid_t pid, const std::filesystem::path& proc = "/proc");

/// What it is doing, and where in the kernel if that may be known: "in uninterruptible sleep
/// (nfs_wait_bit_killable)". Empty when there is no such process.
std::string describe_state(pid_t pid, const std::filesystem::path& proc = "/proc");

/// True if `signal` would end the process at once: it is neither caught, ignored nor blocked by its
/// main thread. False where that cannot be read.
bool has_default_action(pid_t pid, int signal, const std::filesystem::path& proc = "/proc");

/// Finds processes that stay in uninterruptible sleep for some time.
class StuckWatch {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StuckWatch(Clock::duration limit, std::filesystem::path proc = "/proc")
      : limit_(limit), proc_(std::move(proc)) {}

  /// Looks at a process, and is true when each look since `limit` ago has found it so and it has
  /// not run in between.
  bool is_stuck(pid_t pid, Clock::time_point now);

 private:
  struct Sleep {
    Clock::time_point since;
    std::string times_run;  ///< by then, as /proc/PID/schedstat counts
  };

  Clock::duration limit_;
  std::filesystem::path proc_;
  std::map<pid_t, Sleep> asleep_;
};

}  // namespace acc::launcher
