#pragma once

#include "report/core_dump.hpp"
#include "report/oom_kill.hpp"
#include "supervision/worker_record.hpp"

#include <filesystem>
#include <string>

namespace acc::launcher {

/// What the kernel says about the ends of workers, in words for the report. Made before they start,
/// since some of it is the growth of a counter. `root` stands before all paths in /proc, /sys and
/// /dev: "/" but in tests.
class KernelFacts {
 public:
  explicit KernelFacts(const std::filesystem::path& root = "/")
      : root_(root), oom_kills_(root), core_dumps_(root) {}

  /// Why a worker that was killed had to go, where its core dump is or why there is none, where one
  /// that cannot be killed waits; empty: nothing is known. `working_directory` empty: the
  /// launcher's.
  [[nodiscard]] std::string cause(const WorkerRecord& worker,
                                  const std::string& working_directory) const;

 private:
  std::filesystem::path root_;
  OomKills oom_kills_;
  CoreDumps core_dumps_;
};

}  // namespace acc::launcher
