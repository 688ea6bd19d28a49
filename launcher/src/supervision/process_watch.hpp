// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"

#include <sys/types.h>

namespace acc::launcher::supervision {

/// Returns a descriptor that becomes readable when `child`, a child of this process, has ended. The
/// child is not reaped. The descriptor is a pidfd, or, where pidfd_open() is not available (Linux
/// before 5.3, some sandboxes), a pipe that a waiting thread closes. Throws Error(process).
UniqueFd watch_end_of(pid_t child);

}  // namespace acc::launcher::supervision
