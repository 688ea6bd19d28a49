// SPDX-License-Identifier: Apache-2.0
// Builds this machine's report about an ended attempt: for each worker its exit status, its flight
// record, the kernel's reason for a kill, and for failed workers the error file and the last lines
// of stderr. The reports of all machines are merged in job_report.
#include "report/attempt_evidence.hpp"

#include "acc/base/error.hpp"
#include "report/error_file.hpp"
#include "report/root_cause.hpp"
#include "report/torch_record.hpp"

#include <algorithm>
#include <utility>

namespace acc::launcher::report {
namespace {

/// Adds the worker's own account of its failure: error file and last lines of stderr.
void add_own_words(WorkerReport& report, const AttemptEvidence& evidence) {
  ErrorFile file = read_error_file(evidence.files(report.local_rank).error_file);
  report.error_message = std::move(file.message);
  report.traceback = std::move(file.traceback);
  report.last_stderr_lines = evidence.output.last_stderr_lines(report.rank);
}

/// Returns a report with the facts about a worker's end that need no file.
WorkerReport end_of(const supervision::WorkerRecord& worker, const AttemptEvidence& evidence) {
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

WorkerReport worker_report(const supervision::WorkerRecord& worker,
                           const AttemptEvidence& evidence) {
  WorkerReport report = end_of(worker, evidence);
  const RecordFiles record(evidence.files(worker.local_rank).flight_record);
  report.flight = read_any_record(record, worker.rank);
  remove_records(record);  // their contents are in the report now
  if (!worker.end || !worker.end->ok()) {
    report.cause = evidence.kernel.cause(worker, evidence.working_directory);
  }
  if (report.failed()) {
    add_own_words(report, evidence);
  }
  return report;
}

bool has_ended_badly(const WorkerReport& worker) {
  return worker.told_to_end || !worker.end || !worker.end->ok();
}

/// Reduces the flight record of a worker without failure to its last collective. Another machine
/// may have waited for this worker, and the last collective shows how far it came; more would only
/// make the report of a large job longer.
void keep_little(WorkerReport& worker) {
  if (worker.flight && !worker.flight->last.empty()) {
    worker.flight->last = {std::move(worker.flight->last.back())};
  }
}

/// Reports on one worker while others of its attempt may still run.
WorkerReport interim_report(const supervision::WorkerRecord& worker,
                            const AttemptEvidence& evidence) {
  WorkerReport report = end_of(worker, evidence);
  if (!worker.end) {
    report.told_to_end = true;
    return report;
  }
  report.flight = flight::read_record(evidence.files(worker.local_rank).flight_record);
  add_own_words(report, evidence);
  return report;
}

}  // namespace

MachineReport machine_report(const supervision::AttemptOutcome& outcome,
                             const AttemptEvidence& evidence) {
  MachineReport report{.machine_rank = evidence.machine_rank, .host = evidence.host, .workers = {}};
  for (const supervision::WorkerRecord& worker : outcome.workers) {
    report.workers.push_back(worker_report(worker, evidence));
  }
  if (std::ranges::none_of(report.workers, has_ended_badly)) {
    std::ranges::for_each(report.workers, keep_little);
  }
  // The root cause may be a worker that exited with 0, or one that hung and was told to end. Those
  // have no failure of their own, so their output was not read above.
  report.root_cause = root_cause(report.workers, false).worker;
  if (report.root_cause && !report.workers[*report.root_cause].failed()) {
    add_own_words(report.workers[*report.root_cause], evidence);
  }
  return report;
}

std::optional<std::size_t> InterimReports::find_cause(
    const std::vector<supervision::WorkerRecord>& workers, const AttemptEvidence& evidence,
    bool is_whole_job, bool is_last) {
  reports_.resize(workers.size());
  for (std::size_t i = 0; i < workers.size(); ++i) {
    if (!reports_[i].end) {
      if (workers[i].end) {
        evidence.output.catch_up(workers[i].rank);
      }
      reports_[i] = interim_report(workers[i], evidence);
    }
  }
  const RootCause cause = root_cause(reports_, is_whole_job);
  if (!cause.is_certain && !is_last) {
    return std::nullopt;
  }
  // The cause may be a worker that still runs (it hangs). It cannot be announced as failed yet, so
  // the first failure is announced instead; the report will name the cause.
  const bool has_ended = cause.worker && workers[*cause.worker].end;
  return has_ended ? cause.worker : first_failure(reports_);
}

}  // namespace acc::launcher::report
