// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "supervision/cgroup.hpp"

#include <sys/types.h>

#include <string>

namespace acc::launcher::supervision {

/// The job's leftovers, which must be cleaned up by whichever of guardian, keeper and supervisor
/// survives. Construct it before the first fork: all three processes share its memory, so that each
/// can clean up what another one added.
class Leftovers {
 public:
  /// `name`: the name of the control group.
  explicit Leftovers(const std::string& name);

  /// The control group of the workers.
  [[nodiscard]] Cgroup& cgroup() noexcept { return cgroup_; }

  /// Adds a folder to be deleted with its contents. Call at most once; an empty name has no effect.
  void add_folder(const std::string& folder) const noexcept;

  /// Process group of the guardian.
  [[nodiscard]] pid_t guardian_group() const noexcept { return guardian_group_; }

  /// Kills and reaps every process below this one. Returns false if some could not be killed (see
  /// `end_descendants`).
  bool end_processes() noexcept;

  /// Calls `end_processes`, then removes the control group and the folder. Returns its result.
  bool clean_up() noexcept;

 private:
  Cgroup cgroup_;
  pid_t guardian_group_;
  char* folder_;  ///< path in shared memory, mapped for the lifetime of the process
};

}  // namespace acc::launcher::supervision
