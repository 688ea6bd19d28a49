#pragma once

#include <sys/types.h>

#include <atomic>

namespace acc::launcher {

/// Job control of an interactive shell, for a worker that is in the process group that the shell
/// started: the guardian's. Such a worker has the terminal whenever the shell gives it to the job,
/// and stops with it. The shell looks at the guardian alone, and only the supervisor sees that the
/// worker has stopped, so the guardian then stops by the same signal.
/// Made by the guardian before its first fork; supervisor and guardian share what it holds.
class JobControl {
 public:
  JobControl();

  /// The guardian's process group, which a worker may join; 0: its session has no terminal.
  [[nodiscard]] pid_t group() const noexcept { return group_; }

  // The supervisor's part.
  /// The process `worker`, which is in the group, decides from now on when the guardian stops; 0:
  /// none does.
  void set_leader(pid_t worker) const noexcept;
  /// It was stopped by `signal`.
  void stop(int signal) const noexcept;
  /// It goes on.
  void go_on() const noexcept;
  /// True if the guardian has gone on after the worker's last stop, so that the worker should, too.
  [[nodiscard]] bool is_continued() const noexcept;

  // The guardian's part.
  [[nodiscard]] bool is_led() const noexcept;
  /// Stops this process by `signal`, and returns when it goes on. False: it was not stopped, as
  /// nobody could continue it (an orphaned process group).
  static bool stop_self(int signal) noexcept;
  /// The same, if the worker has stopped and is still stopped: the shell may have continued both
  /// since, when the guardian was stopped by the terminal itself.
  void follow_worker() const noexcept;

 private:
  struct Shared {
    std::atomic<pid_t> leader{0};    ///< the worker in the group; 0: none
    std::atomic<int> stopped_by{0};  ///< a signal that the guardian has not followed yet
    std::atomic<int> stops{0};       ///< of the worker
    std::atomic<int> continued{0};   ///< the last stop that the guardian has been continued after
  };

  pid_t guardian_;
  pid_t group_;
  Shared* shared_;  ///< shared memory, as long as the process lives
};

}  // namespace acc::launcher
