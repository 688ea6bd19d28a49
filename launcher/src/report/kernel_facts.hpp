// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/core_dump.hpp"
#include "report/oom_kill.hpp"
#include "supervision/worker_record.hpp"

#include <filesystem>
#include <string>

namespace acc::launcher::report {

/// Explains from kernel data why workers ended: out of memory (OOM) kills, core dumps, signals with
/// one usual cause. Construct it before the workers start, because some facts are the growth of a
/// kernel counter. `root`: prefix of all paths in /proc, /sys and /dev; "/", except in tests.
class KernelFacts {
 public:
  explicit KernelFacts(const std::filesystem::path& root = "/")
      : root_(root), oom_kills_(root), core_dumps_(root) {}

  /// Returns a phrase for the report: why a worker was killed, where its core dump is or why there
  /// is none, or what a worker that cannot be killed waits for. Empty if nothing is known.
  /// `working_directory`: the worker's; empty: the launcher's.
  [[nodiscard]] std::string cause(const supervision::WorkerRecord& worker,
                                  const std::string& working_directory) const;

 private:
  std::filesystem::path root_;
  OomKills oom_kills_;
  CoreDumps core_dumps_;
};

}  // namespace acc::launcher::report
