#pragma once

#include "supervision/cgroup.hpp"

#include <optional>
#include <string>

namespace acc::launcher {

/// What whoever outlives a job cleans up. Made before the first fork; the forked processes share
/// it, in both directions, so that it does not matter who of them is left.
class Remains {
 public:
  /// `name`: of the job's control group, if there can be one.
  explicit Remains(const std::string& name);

  /// The group in which the workers begin; null: there is none.
  [[nodiscard]] const Cgroup* cgroup() const noexcept { return cgroup_ ? &*cgroup_ : nullptr; }

  /// Adds a folder, of which nothing is to stay. Once; nothing happens for an empty name.
  void add_folder(const std::string& folder) const noexcept;

  /// Ends and reaps every process below this one, then removes the group and the folder. False
  /// when some process could not be ended (`end_descendants`).
  bool clean_up() const noexcept;

 private:
  std::optional<Cgroup> cgroup_;
  char* folder_;  ///< shared memory, as long as the process lives
};

}  // namespace acc::launcher
