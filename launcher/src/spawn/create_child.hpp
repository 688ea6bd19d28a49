// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>

namespace acc::launcher::spawn {
/// Forks this process into the control group whose folder is the descriptor `cgroup`; -1: into that
/// of this process. Returns what fork() returns. The child may call async-signal-safe functions
/// only, and must call exec or _exit.
pid_t fork_into(int cgroup) noexcept;

/// Creates a child that calls `body(data)`, which must call exec or _exit, under the same rules.
/// Where possible (x86-64, outside sanitizers) the child uses the memory of this process until
/// then, and this thread waits, as with vfork(): no page is copied, in this process neither.
/// Returns the child's pid, or -1 and sets errno.
pid_t create_child(int cgroup, void (*body)(void* data), void* data) noexcept;

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
