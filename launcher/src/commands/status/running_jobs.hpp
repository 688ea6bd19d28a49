// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "report/machine_report.hpp"

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace acc::launcher::commands {

/// A worker that runs on this machine.
struct RunningWorker {
  /// Its rank, process and flight record. `ended_at` is the moment in which the record was read.
  report::WorkerReport report;
  std::string program;  ///< base name of its executable: python3.11, train_gpt
  std::string state;    ///< what the kernel says: "running", "sleeping (futex_wait)"
  std::chrono::milliseconds cpu_time{0};
};

/// The workers of one acclaunch on this machine.
struct RunningJob {
  pid_t launcher = 0;   ///< the process that the user started
  std::string command;  ///< its command line
  std::chrono::milliseconds running_for{0};
  std::vector<RunningWorker> workers;  ///< by rank
};

/// Returns the jobs of this user (of all users for root) that run on this machine, by launcher. A
/// worker is recognised by ACC_FLIGHT_RECORD and RANK in its environment, so a job that was started
/// with `--log_dir /dev/null` is not found. Processes that end meanwhile are left out. `proc`:
/// mount point of the proc file system.
std::vector<RunningJob> running_jobs(const std::filesystem::path& proc = "/proc");

/// Returns the jobs of one launcher, or all of them if `launcher` is empty. Throws Error(not_found)
/// if there is none, and Error(invalid_argument) if `launcher` is not a process ID.
std::vector<RunningJob> chosen_jobs(const std::string& launcher);

}  // namespace acc::launcher::commands
