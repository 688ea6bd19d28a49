// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace acc {

/// Number of cores that this process may use (sched_getaffinity(2), which respects cpusets and
/// taskset). 1 if the system does not say.
int usable_cores() noexcept;

}  // namespace acc
