// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "supervision/worker_record.hpp"

#include <filesystem>
#include <string>

namespace acc::launcher::report {

/// Finds the core dumps that the kernel writes after this object was constructed (core(5)).
class CoreDumps {
 public:
  explicit CoreDumps(std::filesystem::path root);

  /// Returns where the core dump of a killed worker is, or why there is none. Empty if the worker's
  /// signal does not produce core dumps. `folder`: the worker's initial working directory, in which
  /// relative patterns are searched; it may have changed since.
  [[nodiscard]] std::string cause(const supervision::WorkerRecord& worker,
                                  const std::filesystem::path& folder) const;

 private:
  std::filesystem::path root_;               ///< prefix of paths in /proc: "/", except in tests
  std::filesystem::file_time_type made_at_;  ///< older files belong to other processes
};

/// Translates kernel.core_pattern into a glob(7) pattern for the dump of process `pid`. Unknown
/// parts, such as the time of the dump, become "*". `adds_pid`: the value of kernel.core_uses_pid.
std::string core_file_glob(const std::string& pattern, pid_t pid, bool adds_pid);

}  // namespace acc::launcher::report
