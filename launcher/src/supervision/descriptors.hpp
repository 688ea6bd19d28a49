// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <vector>

namespace acc::launcher::supervision {

struct WorkerSpec;

/// Raises this process's soft limit on file descriptors (RLIMIT_NOFILE) to its hard limit, but to
/// no more than 65536, for the lifetime of the object. Workers are started with the original limit,
/// because programs that use select() cannot handle descriptors above 1023.
class DescriptorLimit {
 public:
  /// Throws Error(not_supported) if the hard limit is too small for any job.
  DescriptorLimit();
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  /// The limit before it was raised.
  [[nodiscard]] const rlimit& original() const noexcept { return original_; }

 private:
  rlimit original_{};
};

/// Throws Error(not_supported) if the limit has no room for the descriptors that are open now,
/// those needed to supervise `workers` (one for the end of each, and those of its output), and
/// `others`.
void require_descriptors(const std::vector<WorkerSpec>& workers, std::size_t others);

/// The same check for `count` remote shell clients, such as ssh, each of which starts one machine.
void require_descriptors_for_clients(std::size_t count);

}  // namespace acc::launcher::supervision
