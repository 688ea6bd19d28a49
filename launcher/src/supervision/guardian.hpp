#pragma once

#include "acc/base/unique_fd.hpp"

#include <functional>
#include <string>

namespace acc::launcher {

/// Splits the program in two so that a SIGKILL of either leaves nothing behind.
///
/// `body` runs in a child, the supervisor: in its own process group, as a subreaper, with all of
/// `handled_signals()` blocked, under another process name and title, so that `pkill acclaunch`
/// hits one of the two only. It has to watch the descriptor that it gets, which is readable when
/// the guardian is gone, and to end its descendants then (`end_descendants`). This process stays
/// behind as the guardian: it passes signals on, waits, then kills and reaps whatever the
/// supervisor left, and returns the supervisor's exit status, or 128 + n when signal n killed it.
/// Call it before any thread is started.
int run_guarded(int argc, char** argv, const std::function<int(UniqueFd)>& body);

/// Has the guardian, of which the supervisor's descriptor is given, remove `folder` and all that is
/// in it when the supervisor has ended. Once; nothing happens for an empty name.
void leave_to_guardian(int guardian, const std::string& folder);

}  // namespace acc::launcher
