#pragma once

#include "acc/launcher/launch_plan.hpp"
#include "output/output_mux.hpp"

#include <string>

namespace acc::launcher {

/// The folder of a run on disk, with the files of each attempt and worker in it; removed at the end
/// unless the user named the place and workers were started.
class LogFolder {
 public:
  /// Of `count` workers from that local rank on; 0: nobody needs it.
  LogFolder(const OutputPlan& plan, int first_local_rank, int count)
      : plan_(plan), first_local_rank_(first_local_rank), count_(count) {}
  ~LogFolder() { remove(); }
  LogFolder(const LogFolder&) = delete;
  LogFolder& operator=(const LogFolder&) = delete;

  /// Makes the folders of all workers. Throws Error(config) where it may not.
  void open_attempt(int attempt) const;

  [[nodiscard]] WorkerTargets targets(int attempt, int local_rank) const;
  [[nodiscard]] std::string error_file(int attempt, int local_rank) const;
  [[nodiscard]] std::string flight_record(int attempt, int local_rank) const;
  /// The attempt's folder, if it stays; else empty.
  [[nodiscard]] std::string kept_folder(int attempt) const;
  /// Of that attempt, in its folder; likewise.
  [[nodiscard]] std::string report_file(int attempt) const;

  /// From now on it may hold what the user wants.
  void keep() { was_used_ = true; }

  void remove() const noexcept;

  /// What is removed at the end in any case; empty: nothing.
  [[nodiscard]] std::string scratch() const;

 private:
  const OutputPlan& plan_;
  int first_local_rank_;
  int count_;
  bool was_used_ = false;
};

}  // namespace acc::launcher
