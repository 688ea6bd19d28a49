#pragma once

#include "acc/base/unique_fd.hpp"

#include <sys/types.h>

namespace acc::launcher {

/// A descriptor that becomes readable when `child` of this process has ended, and reaps nothing: a
/// pidfd, or where the kernel or a sandbox has none (Linux before 5.3), a pipe that a thread
/// closes. Throws Error(process).
UniqueFd watch_end_of(pid_t child);

}  // namespace acc::launcher
