#pragma once

#include "supervision/cgroup.hpp"

#include <string>

namespace acc::launcher {

/// What whoever outlives a job cleans up. Made before the first fork; the forked processes share
/// it, in both directions, so that it does not matter who of them is left.
class Remains {
 public:
  /// `name`: of the control group.
  explicit Remains(const std::string& name);

  /// The group of the workers.
  [[nodiscard]] Cgroup& cgroup() noexcept { return cgroup_; }

  /// Adds a folder, of which nothing is to stay. Once; nothing happens for an empty name.
  void add_folder(const std::string& folder) const noexcept;

  /// Ends and reaps every process below this one, then removes the group and the folder. False
  /// when some process could not be ended (`end_descendants`).
  bool clean_up() noexcept;

 private:
  Cgroup cgroup_;
  char* folder_;  ///< shared memory, as long as the process lives
};

}  // namespace acc::launcher
