#pragma once

#include "acc/base/unique_fd.hpp"

#include <functional>
#include <string>
#include <vector>

namespace acc::launcher {

/// What the supervisor process starts with.
struct SupervisorStart {
  std::vector<std::string> arguments;  ///< argv, without the program's name
  UniqueFd guardian;                   ///< readable when the guardian is gone
};

/// Splits the program in two so that a SIGKILL of either leaves nothing behind.
///
/// `body` runs in a child, the supervisor: in its own process group, as a subreaper, with all of
/// `handled_signals()` blocked, under another process name and title, so that `pkill acclaunch`
/// hits one of the two only. It has to watch `guardian` and to end its descendants when that is
/// gone (`end_descendants`). This process stays behind as the guardian: it passes signals on,
/// waits, then kills and reaps whatever the supervisor left, and returns the supervisor's exit
/// status, or 128 + n when signal n killed it. Call it before any thread is started.
int run_guarded(int argc, char** argv, const std::function<int(SupervisorStart)>& body);

}  // namespace acc::launcher
