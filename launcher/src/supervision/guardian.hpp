#pragma once

#include "acc/base/unique_fd.hpp"
#include "supervision/job_control.hpp"
#include "supervision/remains.hpp"

#include <sys/types.h>

#include <functional>

namespace acc::launcher {

/// What the supervisor has from the processes above it.
struct Guard {
  UniqueFd alive;   ///< readable when the guardian or the keeper is gone
  Remains remains;  ///< of the job: the supervisor's to fill, and to clean up when they are gone
  JobControl job_control;
  pid_t process_group = 0;  ///< the guardian's: what a shell calls the job
};

/// Splits the program in three, each the child of the one before, so that a SIGKILL of any one or
/// two of them leaves nothing behind.
///
/// The guardian is this process, which the user started: it passes signals on and returns the
/// supervisor's exit status, or 128 + n when signal n killed it; it dies of SIGINT as the
/// supervisor did. It stops with the worker that has joined its process group (JobControl), else
/// by SIGTSTP, and leaves the terminal in the mode in which it was before a job that failed. The keeper, in a session of its
/// own, does nothing but to wait: orphans come to it when the supervisor is gone. The supervisor
/// runs `body`, in its own process group, with all of `handled_signals()` blocked. All three are
/// subreapers and have different names and titles, so that `pkill acclaunch` hits the first only.
/// `body` has to watch `Guard::alive`, and to call `Remains::clean_up` and end when that is
/// readable. Whoever sees the one below it end cleans up after it.
/// Call it before any thread is started.
int run_guarded(int argc, char** argv, const std::function<int(Guard)>& body);

}  // namespace acc::launcher
