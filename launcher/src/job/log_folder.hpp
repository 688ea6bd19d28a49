// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "output/output_mux.hpp"

#include <string>

namespace acc::launcher::job {

/// Folder of a run with the files of each attempt and worker. The destructor removes it, unless the
/// user wants the files and workers were started.
class LogFolder {
 public:
  /// For `count` workers, beginning with `first_local_rank`; 0: the job needs no folder. Keeps a
  /// reference to `plan`.
  LogFolder(const OutputPlan& plan, int first_local_rank, int count)
      : plan_(plan), first_local_rank_(first_local_rank), count_(count) {}
  ~LogFolder() { remove(); }
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  /// Creates the folders for the files of all workers. Throws Error(config) if that fails.
  void open_attempt(int attempt) const;

  /// Adds to the folders that are kept links that name the global ranks: `rank_12`.
  void name_ranks(int attempt, int first_rank) const;

  /// Return the destinations of a worker's output and the paths of its files; "" without a folder.
  [[nodiscard]] output::WorkerTargets targets(int attempt, int local_rank) const;
  [[nodiscard]] std::string error_file(int attempt, int local_rank) const;
  [[nodiscard]] std::string flight_record(int attempt, int local_rank) const;
  /// Returns the path of the workers' stacks, which are read before a job that hangs is ended; ""
  /// without a folder.
  [[nodiscard]] std::string stacks_file(int attempt) const;
  /// Returns the attempt's folder if it is kept after the job; else "".
  [[nodiscard]] std::string kept_folder(int attempt) const;
  /// Returns the path of report.json in the attempt's folder if that is kept; else "".
  [[nodiscard]] std::string report_file(int attempt) const;

  /// Marks the folder as used, so that it is kept if the user wants its files.
  void keep() { was_used_ = true; }

  /// Removes the folder if it is temporary or unused.
  void remove() const noexcept;

  /// Returns the temporary folder that is always removed at the end; "" if there is none.
  [[nodiscard]] std::string scratch() const;

 private:
  const OutputPlan& plan_;
  int first_local_rank_;
  int count_;
  bool was_used_ = false;
};

}  // namespace acc::launcher::job
