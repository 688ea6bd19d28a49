#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <vector>

namespace acc::launcher {

struct WorkerSpec;

/// While it lives, this process may have as many descriptors as its hard limit allows (65536 are
/// enough). Workers get back what there was: programs with select() count on a small limit.
class DescriptorLimit {
 public:
  /// Throws Error(config) where a launcher cannot work at all under the hard limit.
  DescriptorLimit();
  ~DescriptorLimit();
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  /// As it was before.
  [[nodiscard]] const rlimit& original() const noexcept { return original_; }

 private:
  rlimit original_{};
};

/// Throws Error(config) where what supervises these workers (the end of each, their output) and
/// `others` are more than the limit allows besides what is open now.
void require_descriptors(const std::vector<WorkerSpec>& workers, std::size_t others);

/// The same for so many clients, such as ssh, that start machines.
void require_descriptors_for_clients(std::size_t count);

}  // namespace acc::launcher
