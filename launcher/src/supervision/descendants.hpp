#pragma once

#include "supervision/cgroup.hpp"

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <span>
#include <vector>

namespace acc::launcher {

/// Every live or unreaped process below `ancestor`, parents before their children. Reads
/// /proc/PID/task/TID/children, or all of /proc/PID/stat where kernel or sandbox lacks the former.
/// `proc` is where that file system is mounted.
std::vector<pid_t> descendants(pid_t ancestor, const std::filesystem::path& proc = "/proc");

/// Sends SIGKILL to all descendants once, and reaps nothing. `cgroup`: that they are in, if any.
void kill_descendants(const Cgroup* cgroup) noexcept;

/// Reaps the children that have ended but for `workers`, which are waited for elsewhere.
void reap_orphans(std::span<const pid_t> workers) noexcept;

/// Kills and reaps until this process has no child left, which includes children of children that
/// went into a session of their own: the caller is a subreaper, so that orphans come to it. The
/// caller blocks SIGCHLD. Returns false when some could not be ended within `limit` (a process in
/// uninterruptible sleep, or one of another user).
/// `cgroup`: that they are in, if any.
bool end_descendants(const Cgroup* cgroup = nullptr,
                     std::chrono::milliseconds limit = std::chrono::seconds(10)) noexcept;

}  // namespace acc::launcher
