// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "output/output_mux.hpp"
#include "report/job_report.hpp"
#include "report/kernel_facts.hpp"
#include "supervision/supervisor.hpp"

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::report {

/// Inputs of the reports about one attempt on this machine. The references must stay valid while
/// the struct is used.
struct AttemptEvidence {
  /// Paths of the files that a worker leaves; "" if it cannot leave any.
  struct Files {
    std::string flight_record;
    std::string error_file;
  };

  int machine_rank = 0;
  std::string host;
  std::string working_directory;
  /// Time at which this machine learned of the attempt's end. The times of the workers' deaths are
  /// given relative to it, which makes them comparable between machines.
  std::chrono::steady_clock::time_point learned_at;
  std::chrono::steady_clock::time_point started_at;  ///< start of the attempt
  std::function<Files(int local_rank)> files;
  output::OutputMux& output;
  const KernelFacts& kernel;
};

/// Reports how the workers of this machine ended. Reads the error files and the last stderr lines
/// of the workers that failed, and of the root cause. Removes the flight records.
MachineReport machine_report(const supervision::AttemptOutcome& outcome,
                             const AttemptEvidence& evidence);

/// Reports on workers while others of their attempt still run, with the facts that are needed to
/// find the root cause of a failure. A worker that still runs counts as told to end. After the end
/// of a worker its report is made only once.
class InterimReports {
 public:
  /// Returns the index of the worker whose failure is to be announced, or empty if that is not
  /// certain yet. `is_last`: the time to wait for evidence is over, so the most likely worker is
  /// returned. `is_whole_job`: see root_cause.
  std::optional<std::size_t> find_cause(const std::vector<supervision::WorkerRecord>& workers,
                                        const AttemptEvidence& evidence, bool is_whole_job,
                                        bool is_last);

 private:
  std::vector<WorkerReport> reports_;
};

}  // namespace acc::launcher::report
