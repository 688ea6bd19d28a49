// SPDX-License-Identifier: Apache-2.0
#include "acc/base/cores.hpp"

#include <sched.h>

namespace acc {

int usable_cores() noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace acc
