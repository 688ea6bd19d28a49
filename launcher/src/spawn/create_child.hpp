// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

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

}  // namespace acc::launcher::spawn
