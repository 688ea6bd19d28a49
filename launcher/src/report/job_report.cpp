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

JobReport job_report(const std::vector<rendezvous::ReportedMachine>& machines) {
  JobReport job;
  for (const auto& [machine_rank, host, text] : machines) {
    try {
      MachineReport report = decode_machine_report(text);
      std::ranges::move(report.workers, std::back_inserter(job.workers));
    } catch (const Error&) {  // no report, or one of another version of the launcher
      job.silent_machines.push_back("machine " + std::to_string(machine_rank) + " (" + host + ")");
    }
  }
  std::ranges::stable_sort(job.workers, {}, &WorkerReport::rank);
  // All machines have the same reports, so all come to the same root cause.
  job.first_failure = root_cause(job.workers, true).worker;
  return job;
}

}  // namespace acc::launcher::report
