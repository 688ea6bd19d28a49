#pragma once

#include "supervision/worker_record.hpp"

#include <filesystem>
#include <string>

namespace acc::launcher {

/// Where the kernel leaves core dumps (core(5)), from now on.
class CoreDumps {
 public:
  explicit CoreDumps(std::filesystem::path root);

  /// Where that of a worker is which a signal ended that makes one, or why there is none. Empty:
  /// the signal makes none. A folder: where the worker was started, unless it went elsewhere.
  [[nodiscard]] std::string cause(const WorkerRecord& worker,
                                  const std::filesystem::path& folder) const;

 private:
  std::filesystem::path root_;
  std::filesystem::file_time_type made_at_;  ///< older files are of others
};

/// The files that a dump of process `pid` may be by `pattern`, for glob(7): what is not known of it
/// is "*". `adds_pid`: kernel.core_uses_pid.
std::string core_file_glob(const std::string& pattern, pid_t pid, bool adds_pid);

}  // namespace acc::launcher
