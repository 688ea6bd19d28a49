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

/// How many descriptors these workers need in the process that supervises them.
std::size_t descriptors_for(const std::vector<WorkerSpec>& workers);

/// Throws Error(config) where so many more than are open now, for so many workers, are over the
/// limit.
void require_descriptors(std::size_t more, std::size_t num_workers);

/// Opens /dev/null in the place of a missing stdin, stdout or stderr, so that nothing else gets its
/// number.
void fill_standard_streams() noexcept;

}  // namespace acc::launcher
