#pragma once

#include <cstddef>
#include <cstdint>

namespace acc::launcher {

/// Where a job on this machine stands.
enum class JobState : std::uint8_t {
  running,   ///< no reason to end it is known
  failing,   ///< a worker failed, and others may be about to: the time to find the cause runs
  stopping,  ///< the workers were asked to end, the shutdown timeout runs
  killing,   ///< they got SIGKILL, the time in which that has to work runs
  ended,     ///< no worker is left, or those left were given up
};

enum class JobEvent : std::uint8_t {
  worker_succeeded,
  worker_failed,   ///< or is stuck
  cause_is_known,  ///< the worker that the failure is put down to
  all_ended,       ///< after the last worker's own event
  stop_signal,    ///< the user or the job manager wants the end
  peer_failed,    ///< another machine of the job reports a failure, or is gone
  time_is_over,   ///< to find the cause, to end, to die
};

enum class JobAction : std::uint8_t {
  none,
  find_cause,  ///< start the time in which that has to be found
  stop,    ///< ask the remaining workers to end, start the shutdown timeout
  kill,    ///< SIGKILL to whatever is left, start the time in which that has to work
  finish,  ///< the end, all workers are reaped
  give_up  ///< the end, though some workers cannot be killed
};

inline constexpr std::size_t kJobStates = 5;
inline constexpr std::size_t kJobEvents = 7;

struct JobStep {
  JobState next;
  JobAction action;
  bool operator==(const JobStep&) const = default;
};

/// What to do about `event` in `state`: the whole policy of supervision, without I/O.
JobStep job_step(JobState state, JobEvent event) noexcept;

}  // namespace acc::launcher
