// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "supervision/cgroup.hpp"

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <span>
#include <vector>

namespace acc::launcher::supervision {

/// Returns every running or unreaped process below `ancestor`, parents before their children.
/// Reads /proc/PID/task/TID/children, or the stat file of every process where that file is missing
/// (kernels without CONFIG_PROC_CHILDREN, gVisor). `proc`: mount point of the proc file system.
/// `spared`: a child that is left out together with its own descendants; 0: none.
std::vector<pid_t> descendants(pid_t ancestor, const std::filesystem::path& proc = "/proc",
                               pid_t spared = 0);

/// Processes that live on when the descendants are killed.
struct Spared {
  /// Process group of the guardian: its other members, such as a shell, may be no descendants.
  pid_t group = 0;
  pid_t child = 0;  ///< a child, with its descendants; 0: none
};

/// Sends SIGKILL to all descendants once, without reaping them. A process group is killed as a
/// whole: the kernel does that at once, so that no member can fork another one meanwhile. `cgroup`:
/// the control group of the workers; may be null.
void kill_descendants(const Cgroup* cgroup, Spared spared) noexcept;

/// Reaps the children that have ended, except `workers`, whose exit status is read elsewhere.
void reap_orphans(std::span<const pid_t> workers) noexcept;

/// Kills and reaps until this process has no child left except the spared one. This includes
/// grandchildren that called setsid() or daemonized: the caller must be a child subreaper
/// (PR_SET_CHILD_SUBREAPER), so that orphans become its children. The caller must block SIGCHLD.
/// Returns false if some process did not end within `limit` (one in uninterruptible sleep, or one
/// of another user). `cgroup`: the control group of the workers; may be null.
bool end_descendants(const Cgroup* cgroup, Spared spared,
                     std::chrono::milliseconds limit = std::chrono::seconds(10)) noexcept;

}  // namespace acc::launcher::supervision
