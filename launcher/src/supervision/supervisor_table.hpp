// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace acc::launcher::supervision {

/// State of an attempt on this machine: of the workers that one Supervisor watches.
enum class AttemptState : std::uint8_t {
  running,    ///< no worker failed, and no stop was requested
  holding,    ///< workers are lost, here or on other machines; the others wait for the next round
  replacing,  ///< lost workers were started again; waits until all workers have rejoined
  failing,    ///< a worker failed; waits for the root cause, at most `cause_timeout`
  stopping,   ///< the workers got SIGTERM or the user's signal; the shutdown timeout runs
  killing,    ///< the workers got SIGKILL; `kTimeToDie` runs
  ended,      ///< all workers ended, or the remaining ones cannot be killed
};

enum class AttemptEvent : std::uint8_t {
  worker_succeeded,
  worker_failed,   ///< a worker ended with an error, or is stuck
  workers_lost,    ///< workers ended with an error, and may be started again without the others
  round_formed,    ///< those that are lost may be started
  cause_is_known,  ///< the root cause of the failure was found
  all_ended,       ///< follows the event of the last worker
  stop_signal,     ///< the user or the job manager asked for the end
  peer_failed,     ///< another machine of the job reported a failure, or lost its connection
  time_is_over,    ///< the time limit of the current state has passed
  all_rejoined,    ///< all workers that run have joined the groups with those that are new
};

enum class AttemptAction : std::uint8_t {
  none,
  hold,        ///< stop the limit of the last state
  replace,     ///< start workers that have ended, and the time limit for all to rejoin
  go_on,       ///< stop that timeout
  blame_lost,  ///< workers do not rejoin: if one of this machine was lost, it is the root cause
  find_cause,  ///< start `cause_timeout`
  stop,        ///< signal the remaining workers, start the shutdown timeout
  kill,        ///< send SIGKILL to all remaining processes, start `kTimeToDie`
  finish,      ///< complete `Supervisor::run`: all workers are reaped
  give_up      ///< complete `Supervisor::run` although some workers cannot be killed
};

inline constexpr std::size_t kAttemptStates = 7;
inline constexpr std::size_t kAttemptEvents = 10;

struct AttemptStep {
  AttemptState next;
  AttemptAction action;
  bool operator==(const AttemptStep&) const = default;
};

std::string_view name_of(AttemptState state) noexcept;
std::string_view name_of(AttemptEvent event) noexcept;

/// Returns the next state and the action for `event` in `state`. A pure function: the complete
/// supervision policy, without I/O.
AttemptStep attempt_step(AttemptState state, AttemptEvent event) noexcept;

}  // namespace acc::launcher::supervision
