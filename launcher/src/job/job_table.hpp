// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace acc::launcher::job {

/// State of a job on this machine. In `leaving`, `stopping` and `withdrawing`, and only there, this
/// machine has received a stop request.
enum class JobState : std::uint8_t {
  starting,  ///< no round has been asked for
  joining,   ///< a round is being formed; the other machines may count on this one
  leaving,   ///< stopped: gives up its place, or writes the last output
  running,   ///< workers run
  failing,   ///< workers are being ended because of a fault, here or on another machine
  ending,    ///< workers are being ended because of a stop request to another machine, or a change
             ///< of membership
  stopping,  ///< stopped: workers are being ended
  settling,  ///< workers have ended; the machines exchange reports and decide what follows
  settling_failure,  ///< the same after a fault
  pausing,           ///< waits before a restart
  withdrawing,       ///< stopped: no worker runs; exchanges reports, then gives up its place
  over,              ///< the last attempt has ended, or an internal fault has ended the job
};

enum class JobEvent : std::uint8_t {
  // Events from outside.
  stop_request,  ///< request that never kills: time limit, broken connection to the remote launcher
  forcing_request,  ///< request that kills if it is not the first one: a signal of the user
  reader_lost,      ///< nobody reads the launcher's output any more
  kill_order,       ///< the user forced the stop on another machine, or the guardian has died
  worker_failed,    ///< the first failure of a worker on this machine, with its cause
  failure_known,    ///< the end of the attempt that counts is known: a fault
  stop_known,       ///< the same: a stop request, or a change of membership

  // Steps of the life cycle, which the coroutine Job::work takes. They have no action.
  join,           ///< asks for a place in the next round
  workers_start,  ///< a round is formed
  workers_ended,  ///< or the attempt has ended before they were started
  pause,          ///< the next attempt begins after a pause
  finish,         ///< no attempt follows
  fault,          ///< an internal fault of this launcher
};

/// Reaction to an event from outside.
enum class JobAction : std::uint8_t {
  none,
  quit,      ///< end the event loop at once
  leave,     ///< give up the place in the round that is being formed, then end the event loop
  end,       ///< signal the workers
  note,      ///< only print the request: the workers are already being ended
  kill,      ///< kill the workers; a request also forces the stop on the other machines
  withdraw,  ///< do not restart
  hurry,     ///< force the stop on the other machines, and do not wait for their reports
  announce,  ///< print the failure, and end the attempt on all machines
  follow,    ///< end the workers because the attempt has ended
};

inline constexpr std::size_t kJobStates = 12;
inline constexpr std::size_t kJobEvents = 13;

struct JobStep {
  JobState next;
  JobAction action;
  bool operator==(const JobStep&) const = default;
};

/// Returns the next state and the action for `event` in `state`. A pure function: the complete
/// policy for stop requests and failures, without I/O. An event that cannot happen in a state
/// changes nothing.
JobStep job_step(JobState state, JobEvent event) noexcept;

/// True in the states in which workers run.
constexpr bool has_workers(JobState state) noexcept {
  return state == JobState::running || state == JobState::failing || state == JobState::ending ||
         state == JobState::stopping;
}

}  // namespace acc::launcher::job
