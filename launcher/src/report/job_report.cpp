// SPDX-License-Identifier: Apache-2.0
#include "report/job_report.hpp"

#include "acc/base/error.hpp"
#include "report/root_cause.hpp"

#include <algorithm>
#include <iterator>

namespace acc::launcher::report {

bool JobReport::has_several_machines() const {
  const auto elsewhere = [this](const WorkerReport& worker) {
    return worker.machine_rank != workers.front().machine_rank;
  };
  return !silent_machines.empty() || std::ranges::any_of(workers, elsewhere);
}

JobReport job_report(const rendezvous::RoundResult& result) {
  using Cause = rendezvous::AttemptEnd::Cause;
  JobReport job;
  for (const auto& [machine_rank, host, text] : result.machines) {
    try {
      MachineReport report = decode_machine_report(text);
      std::ranges::move(report.workers, std::back_inserter(job.workers));
    } catch (const Error&) {  // no report, or one of another version of the launcher
      job.silent_machines.push_back("machine " + std::to_string(machine_rank) + " (" + host + ")");
    }
  }
  std::ranges::stable_sort(job.workers, {}, &WorkerReport::rank);
  const std::optional<rendezvous::AttemptEnd>& end = result.end;
  job.exit_status = end ? end->exit_status : 0;
  if (!end || end->cause == Cause::worker) {
    // All machines have the same reports, so all come to the same root cause.
    job.first_failure = root_cause(job.workers, true).worker;
  } else if (end->cause == Cause::other || (end->cause != Cause::stop && !end->restarts)) {
    job.reason = end->reason;
  }
  if (job.first_failure) {
    job.exit_status = exit_status(job.workers, *job.first_failure);
  }
  return job;
}

}  // namespace acc::launcher::report
