// SPDX-License-Identifier: Apache-2.0
#include "state_dict/background_thread.hpp"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace acc::state_dict {

void step_back() noexcept {
  constexpr int kNiceness = 15;
  // ioprio_set(2) has no wrapper: IOPRIO_WHO_PROCESS, this thread, class best-effort, lowest level.
  constexpr int kWhoProcess = 1;
  constexpr int kLowestBestEffort = (2 << 13) | 7;
  ::syscall(SYS_ioprio_set, kWhoProcess, 0, kLowestBestEffort);
  ::setpriority(PRIO_PROCESS, 0, kNiceness);  // of a thread, on Linux
}

}  // namespace acc::state_dict
