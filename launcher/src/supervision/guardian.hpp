// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "supervision/job_control.hpp"
#include "supervision/leftovers.hpp"

#include <sys/types.h>

#include <functional>

namespace acc::launcher::supervision {

/// Handles that the supervisor process shares with the keeper and the guardian above it.
struct Guard {
  UniqueFd alive;  ///< becomes readable when the guardian or the keeper has died
  /// Cleanup of the job. The supervisor adds to it, and performs it if `alive` becomes readable.
  Leftovers leftovers;
  JobControl job_control;
  pid_t process_group = 0;  ///< the guardian's process group, which a shell treats as the job
};

/// Splits the program into three processes, so that killing any one or two of them by SIGKILL
/// leaves no worker behind:
///
///   guardian    The process that the user started. Passes signals on to the keeper. Returns the
///     |         supervisor's exit status, or 128 + n if signal n killed it; if the supervisor died
///     |         of SIGINT, the guardian does too. Stops together with the worker that joined its
///     |         process group (see JobControl), or else on SIGTSTP. Restores the terminal's mode
///     |         after a job that failed.
///   keeper      Waits for the supervisor, in its own session. If the supervisor dies, the workers
///     |         become children of the keeper, which kills them.
///   supervisor  Runs `body` in its own process group, with all of `handled_signals()` blocked.
///
/// All three are child subreapers. They have different process names and titles, so that
/// `pkill acclaunch` finds only the guardian. Each process cleans up when its child dies. `body`
/// must watch `Guard::alive`; when that is readable it must call `Leftovers::clean_up` and return.
///
/// Call this before any thread is started, since only the calling thread survives fork().
int run_guarded(int argc, char** argv, const std::function<int(Guard)>& body);

}  // namespace acc::launcher::supervision
