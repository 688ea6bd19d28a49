#pragma once

#include <cstddef>
#include <cstdint>

namespace acc::launcher {

/// State of the job on this machine.
enum class JobState : std::uint8_t {
  running,   ///< no worker failed, and no stop was requested
  failing,   ///< a worker failed; waits for the root cause, at most `cause_timeout`
  stopping,  ///< the workers got SIGTERM or the user's signal; the shutdown timeout runs
  killing,   ///< the workers got SIGKILL; `kTimeToDie` runs
  ended,     ///< all workers ended, or the remaining ones cannot be killed
};

enum class JobEvent : std::uint8_t {
  worker_succeeded,
  worker_failed,   ///< a worker ended with an error, or is stuck
  cause_is_known,  ///< the root cause of the failure was found
  all_ended,       ///< follows the event of the last worker
  stop_signal,     ///< the user or the job manager asked for the end
  peer_failed,     ///< another machine of the job reported a failure, or lost its connection
  time_is_over,    ///< the time limit of the current state has passed
};

enum class JobAction : std::uint8_t {
  none,
  find_cause,  ///< start `cause_timeout`
  stop,        ///< signal the remaining workers, start the shutdown timeout
  kill,        ///< send SIGKILL to all remaining processes, start `kTimeToDie`
  finish,      ///< complete `Supervisor::run`: all workers are reaped
  give_up      ///< complete `Supervisor::run` although some workers cannot be killed
};

inline constexpr std::size_t kJobStates = 5;
inline constexpr std::size_t kJobEvents = 7;

struct JobStep {
  JobState next;
  JobAction action;
  bool operator==(const JobStep&) const = default;
};

/// Returns the next state and the action for `event` in `state`. A pure function: the complete
/// supervision policy, without I/O.
JobStep job_step(JobState state, JobEvent event) noexcept;

}  // namespace acc::launcher
