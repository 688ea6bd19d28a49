#pragma once

#include "acc/base/unique_fd.hpp"

#include <sys/types.h>

namespace acc::collectives {

/// For sandboxes in which /proc/PID/fd cannot be opened: lets the processes of this user ask for
/// descriptor `fd` of this one. The first call starts a thread that answers them. Throws
/// Error(collective).
void serve_descriptor(int fd);

/// Asks process `pid` for its descriptor `fd`; empty, with errno, when it does not serve it.
UniqueFd ask_for_descriptor(pid_t pid, int fd) noexcept;

}  // namespace acc::collectives
