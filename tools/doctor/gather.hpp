// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "doctor/facts.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>

namespace acc::doctor {

/// Fills in what this machine can find out about itself: names, limits, memory, libraries. Does not
/// change `machine`, `gpus` and `driver_version`, which the launcher passes, nor `address`, `ports`
/// and `token`.
void gather(MachineFacts& facts);

/// Memory of a control group (cgroup version 1 or 2), in bytes.
struct GroupMemory {
  std::optional<std::int64_t> limit;  ///< empty: no limit
  std::int64_t used = 0;              ///< without the page cache, which the kernel can drop
};
GroupMemory memory_of_group(const std::filesystem::path& group);

}  // namespace acc::doctor
