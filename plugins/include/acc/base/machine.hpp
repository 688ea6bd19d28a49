// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

// Resources of the machine that this process may use.
namespace acc {

/// Returns the host name that the kernel reports (gethostname), printable.
std::string host_name();

/// Number of cores (sched_getaffinity(2), which respects cpusets and taskset). At least 1.
int usable_cores() noexcept;

/// Memory in bytes.
struct MachineMemory {
  std::int64_t total = 0;             ///< of the machine
  std::int64_t available = 0;         ///< also within the limits of the control groups
  std::optional<std::int64_t> limit;  ///< smallest of the control groups, if less than total
};
/// Returns zeros if /proc/meminfo cannot be read.
MachineMemory machine_memory();

/// Folder of this process's control group (cgroup) for a controller such as "memory". It may not
/// exist in a container, whose own group is the root of /sys/fs/cgroup; the limits of all parents
/// apply.
std::filesystem::path control_group(const std::string& controller);

/// Memory of a control group (cgroup version 1 or 2), in bytes.
struct GroupMemory {
  std::optional<std::int64_t> limit;  ///< empty: no limit
  std::int64_t used = 0;              ///< without the page cache, which the kernel can drop
};
GroupMemory memory_of_group(const std::filesystem::path& group);

}  // namespace acc
