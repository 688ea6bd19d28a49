// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>

namespace acc::launcher::supervision {

/// Implements the job control of an interactive shell (Ctrl-Z, fg, bg) for a worker that runs in
/// the guardian's process group, which is the one that the shell created. Such a worker can use the
/// terminal whenever the shell puts the job into the foreground, and the terminal stops it by
/// Ctrl-Z. The shell waits for the guardian only, whereas the supervisor, the worker's parent, is
/// the process that learns of the stop. The supervisor therefore records the stop here, and the
/// guardian stops itself by the same signal.
/// Construct it in the guardian before the first fork: guardian and supervisor share its memory.
class JobControl {
 public:
  JobControl();

  /// The guardian's process group, which a worker may join; 0 if the session has no terminal.
  [[nodiscard]] pid_t group() const noexcept { return group_; }

  // Called by the supervisor.
  /// Makes the process `worker`, a member of the group, the leader: the guardian stops when it
  /// stops. 0: there is no leader.
  void set_leader(pid_t worker) const noexcept;
  /// Reports that the leader was stopped by `signal`.
  void stop(int signal) const noexcept;
  /// Reports that the leader was continued.
  void go_on() const noexcept;
  /// True if the guardian was continued after the leader's last stop, so that the leader must be
  /// continued too.
  [[nodiscard]] bool is_continued() const noexcept;

  // Called by the guardian.
  /// True if there is a leader.
  [[nodiscard]] bool is_led() const noexcept;
  /// Stops this process by `signal` and returns when it is continued. Returns false if the kernel
  /// did not stop it, because its process group is orphaned and no shell could continue it.
  static bool stop_self(int signal) noexcept;
  /// Stops this process by the signal that stopped the leader, if the leader is still stopped. The
  /// terminal may have stopped the guardian directly, and the shell may have continued both since.
  void follow_worker() const noexcept;

 private:
  struct Shared {
    std::atomic<pid_t> leader{0};    ///< pid of the worker in the group; 0: none
    std::atomic<int> stopped_by{0};  ///< signal of a stop not yet handled by the guardian; 0: none
    std::atomic<int> stops{0};       ///< number of times that the leader was stopped
    std::atomic<int> continued{0};   ///< value of `stops` when the guardian was last continued
  };

  pid_t guardian_;
  pid_t group_;
  Shared* shared_;  ///< shared memory, mapped for the lifetime of the process
};

}  // namespace acc::launcher::supervision
