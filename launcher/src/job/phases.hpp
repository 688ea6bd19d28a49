// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace acc::launcher::job {

/// The phases of a job as the launcher sees them, for the timeline of a machine (--trace). Keeps
/// nothing if no timeline is wanted.
class Phases {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Phases(bool wanted) : wanted_(wanted) {}
  [[nodiscard]] bool wanted() const noexcept { return wanted_; }

  /// A phase of the launcher itself. Phases that have no length are left out.
  void add(std::string name, Clock::time_point begin, Clock::time_point end);
  /// A phase of a worker.
  void add(int rank, std::string name, Clock::time_point begin, Clock::time_point end);

  /// Adds the phase from the end of the last one to the present, and appends all to a trace file:
  /// the launcher is a process of the trace, in which the job and each worker have a thread. Throws
  /// Error(config) if the file cannot be written.
  void finish(const std::string& path, int machine_rank, const std::string& host);

 private:
  struct Phase {
    int rank;  ///< kOfJob: of the launcher itself
    std::string name;
    Clock::time_point begin;
    Clock::time_point end;
  };
  static constexpr int kOfJob = -1;

  bool wanted_;
  std::vector<Phase> phases_;
};

}  // namespace acc::launcher::job
