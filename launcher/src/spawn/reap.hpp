// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>

namespace acc::launcher::spawn {

/// Time in which a process ends after SIGKILL, unless it is in uninterruptible sleep.
constexpr std::chrono::milliseconds kTimeAfterKill{1000};

/// Waits until the child `pid` has ended, at most for `limit`, and reaps it. Returns its wait
/// status; empty if it still runs, or is no child of this process. It may also be stopped, or
/// survive SIGKILL in a call to a driver or a dead file server: no wait for a child has no limit.
std::optional<int> reap_within(pid_t pid, std::chrono::milliseconds limit) noexcept;

/// True if `pid` is a child of this process that has not been reaped, also if it has ended. The
/// number cannot belong to another process before it is reaped.
bool is_child(pid_t pid) noexcept;

}  // namespace acc::launcher::spawn
