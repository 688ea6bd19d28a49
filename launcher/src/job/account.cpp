// SPDX-License-Identifier: Apache-2.0
// Builds this machine's report about an ended attempt: for each worker its exit status, its flight
// record, the kernel's reason for a kill, and for failed workers the error file and the last lines
// of stderr. The reports of all machines are merged in report/job_report.
#include "job/account.hpp"

#include "acc/base/error.hpp"
#include "report/error_file.hpp"
#include "report/root_cause.hpp"
#include "report/torch_record.hpp"

#include <algorithm>
#include <utility>

namespace acc::launcher::job {
namespace {

std::string flight_record_path(const supervision::WorkerRecord& worker,
                               const AttemptEvidence& evidence) {
  return evidence.logs.flight_record(evidence.attempt, worker.local_rank);
}

/// Adds the worker's own account of its failure: error file and last lines of stderr.
void add_own_words(report::WorkerReport& report, const AttemptEvidence& evidence) {
  report::ErrorFile file =
      report::read_error_file(evidence.logs.error_file(evidence.attempt, report.local_rank));
  report.error_message = std::move(file.message);
  report.traceback = std::move(file.traceback);
  report.last_stderr_lines = evidence.output.last_stderr_lines(report.rank);
}

/// Returns a report with the facts about a worker's end that need no file.
report::WorkerReport end_of(const supervision::WorkerRecord& worker,
                            const AttemptEvidence& evidence) {
  using std::chrono::duration_cast;
  const bool is_known = worker.died_at != std::chrono::steady_clock::time_point();
  const auto died_at = is_known ? worker.died_at : std::chrono::steady_clock::now();
  return {.rank = worker.rank,
          .local_rank = worker.local_rank,
          .machine_rank = evidence.machine_rank,
          .host = evidence.host,
          .pid = worker.pid,
          .end = worker.end,
          .told_to_end = worker.told_to_end,
          .stuck = !worker.stuck.empty() && !worker.told_to_end,
          .moment = duration_cast<std::chrono::microseconds>(died_at - evidence.learned_at),
          .ended_at = worker.ended_at,
          .ran_for = duration_cast<std::chrono::milliseconds>(died_at - evidence.started_at)};
}

report::WorkerReport worker_report(const supervision::WorkerRecord& worker,
                                   const AttemptEvidence& evidence) {
  report::WorkerReport report = end_of(worker, evidence);
  const report::RecordFiles record(flight_record_path(worker, evidence));
  report.flight = report::read_any_record(record, worker.rank);
  report::remove_records(record);  // their contents are in the report now
  if (!worker.end || !worker.end->ok()) {
    report.cause = evidence.kernel.cause(worker, evidence.working_directory);
  }
  if (report.failed()) {
    add_own_words(report, evidence);
  }
  return report;
}

bool has_ended_badly(const report::WorkerReport& worker) {
  return worker.told_to_end || !worker.end || !worker.end->ok();
}

/// Reduces the flight record of a worker without failure to its last collective. Another machine
/// may have waited for this worker, and the last collective shows how far it came; more would only
/// make the report of a large job longer.
void keep_little(report::WorkerReport& worker) {
  if (worker.flight && !worker.flight->last.empty()) {
    worker.flight->last = {std::move(worker.flight->last.back())};
  }
}

}  // namespace

report::MachineReport machine_report(const supervision::AttemptOutcome& outcome,
                                     const AttemptEvidence& evidence) {
  report::MachineReport report{
      .machine_rank = evidence.machine_rank, .host = evidence.host, .workers = {}};
  for (const supervision::WorkerRecord& worker : outcome.workers) {
    report.workers.push_back(worker_report(worker, evidence));
  }
  if (std::ranges::none_of(report.workers, has_ended_badly)) {
    std::ranges::for_each(report.workers, keep_little);
  }
  // The root cause may be a worker that exited with 0, or one that hung and was told to end. Those
  // have no failure of their own, so their output was not read above.
  const auto cause = report::root_cause(report.workers, false).worker;
  if (cause && !report.workers[*cause].failed()) {
    add_own_words(report.workers[*cause], evidence);
  }
  return report;
}

report::WorkerReport interim_report(const supervision::WorkerRecord& worker,
                                    const AttemptEvidence& evidence) {
  report::WorkerReport report = end_of(worker, evidence);
  if (!worker.end) {
    report.told_to_end = true;
    return report;
  }
  report.flight = flight::read_record(flight_record_path(worker, evidence));
  add_own_words(report, evidence);
  return report;
}

}  // namespace acc::launcher::job
