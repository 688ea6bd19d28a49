#include "job/account.hpp"

#include "acc/base/error.hpp"
#include "report/error_file.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>

namespace acc::launcher {
namespace {

WorkerReport worker_report(const WorkerRecord& worker, const AttemptEvidence& evidence) {
  using std::chrono::duration_cast;
  const bool is_known = worker.died_at != std::chrono::steady_clock::time_point();
  const auto died_at = is_known ? worker.died_at : std::chrono::steady_clock::now();
  WorkerReport report{
      .rank = worker.rank,
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
  const std::string record = evidence.logs.flight_record(evidence.attempt, worker.local_rank);
  report.flight = flight::read_record(record);
  ::unlink(record.c_str());  // the report has it
  if (!worker.end || !worker.end->ok()) {
    report.cause = evidence.kernel.cause(worker, evidence.working_directory);
  }
  if (report.failed()) {
    ErrorFile file = read_error_file(evidence.logs.error_file(evidence.attempt, worker.local_rank));
    report.error_message = std::move(file.message);
    report.traceback = std::move(file.traceback);
    report.last_stderr_lines = evidence.output.last_stderr_lines(worker.rank);
  }
  return report;
}

bool has_ended_badly(const WorkerReport& worker) {
  return worker.told_to_end || !worker.end || !worker.end->ok();
}

/// Of those that another machine may have waited for: how far they came.
void keep_little(WorkerReport& worker) {
  if (worker.flight && !worker.flight->last.empty()) {
    worker.flight->last = {std::move(worker.flight->last.back())};
  }
}

}  // namespace

MachineReport machine_report(const AttemptOutcome& outcome, const AttemptEvidence& evidence) {
  MachineReport report{.machine_rank = evidence.machine_rank, .host = evidence.host, .workers = {}};
  for (const WorkerRecord& worker : outcome.workers) {
    report.workers.push_back(worker_report(worker, evidence));
  }
  if (std::ranges::none_of(report.workers, has_ended_badly)) {
    std::ranges::for_each(report.workers, keep_little);
  }
  return report;
}

}  // namespace acc::launcher
