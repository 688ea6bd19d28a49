// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/machine_report.hpp"
#include "report/record_files.hpp"
#include "spawn/user.hpp"
#include "supervision/process_handle.hpp"

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace acc::launcher::commands {

/// A worker that runs on this machine.
struct RunningWorker {
  /// Its rank, process and flight record. `ended_at` is the moment in which the record was read.
  report::WorkerReport report;
  std::shared_ptr<const supervision::ProcessHandle> process;
  spawn::User user;
  report::RecordFiles files;  ///< its flight record, which may not exist
  std::string program;        ///< base name of its executable: python3.11, train_gpt
  std::string state;          ///< what the kernel says: "running", "sleeping (futex_wait)"
  std::chrono::milliseconds cpu_time{0};
  std::chrono::milliseconds running_for{0};
  std::int64_t resident_bytes = 0;

  /// True if the runtime has recorded collectives.
  [[nodiscard]] bool has_collectives() const {
    return report.flight && !report.flight->last.empty();
  }
};

/// The workers of one acclaunch on this machine.
struct RunningJob {
  pid_t launcher = 0;    ///< the process that the user started
  pid_t supervisor = 0;  ///< its descendant that has started the workers
  std::string command;   ///< its command line
  std::chrono::milliseconds running_for{0};
  std::string run_id;  ///< empty if the front end gives the workers none
  /// Same for all launchers of a job: its user, the address of its rendezvous, and its run ID.
  std::string identity;
  /// The job of Slurm in which it runs, and the element of an array, "77_3"; empty: none.
  std::string slurm_job;
  std::string slurm_array_element;
  int restarts = 0;
  int max_restarts = 0;
  int num_machines = 1;
  int world_size = 0;
  std::vector<RunningWorker> workers;  ///< by rank
};

/// Returns the jobs of this user (of all users for root) that run on this machine, by launcher. A
/// worker is recognised by ACC_FLIGHT_RECORD and RANK in its environment, so a job that was started
/// with `--log_dir /dev/null` is not found. Processes that end meanwhile are left out. What the
/// variables of another user's process name is used with the rights of that user.
std::vector<RunningJob> running_jobs();

/// Asks Python workers without collectives of the runtime for torch's records, for two seconds at
/// most, and adds them.
void add_torch_records(std::vector<RunningJob>& jobs);

/// Returns the jobs with this run ID or Slurm job ID, or of the launcher with this process ID, or
/// all of them if `job` is empty. Throws Error(not_found) if there is none; if Slurm runs the job
/// on other machines, the error has the line that runs `acclaunch COMMAND JOB` there.
std::vector<RunningJob> chosen_jobs(const std::string& job, const std::string& command);

/// Returns a line for the ranks of the job that run on other machines, and how to reach them; empty
/// if there are none. `jobs`: all on this machine.
std::string other_machines(const std::vector<RunningJob>& jobs, const RunningJob& job,
                           const std::string& command);

/// Returns the workers of all launchers of this job on this machine.
std::vector<report::WorkerReport> reports_of(const std::vector<RunningJob>& jobs,
                                             const RunningJob& job);

}  // namespace acc::launcher::commands
