// SPDX-License-Identifier: Apache-2.0
#include "acc/base/json.hpp"
#include "report/job_report.hpp"
#include "report/worker_json.hpp"

namespace acc::launcher::report {

using Json = nlohmann::ordered_json;

// The format is described by docs/report.schema.json. Texts of workers may contain invalid UTF-8,
// which is replaced.
std::string report_json(const JobReport& report) {
  Json workers = Json::array();
  for (const WorkerReport& worker : report.workers) {
    workers.push_back(worker_json(bounded(worker)));
  }
  Json json = {{"format", 1},
               {"command", report.command},
               {"run_id", report.run_id},
               {"attempt", report.attempt},
               {"max_restarts", report.max_restarts},
               {"restarts_after_ms", nullptr},
               {"exit_status", report.exit_status},
               {"reason", report.reason},
               {"first_failure", nullptr},
               {"late", Json::array()},
               {"workers", std::move(workers)},
               {"silent_machines", report.silent_machines},
               {"stacks", report.stacks},
               {"log_folder", report.log_folder}};
  for (const LateRanks& late : late_ranks(report.workers, report.first_failure)) {
    json["late"].push_back(late_json(late));
  }
  if (report.restarts_after) {
    json["restarts_after_ms"] = report.restarts_after->count();
  }
  if (report.first_failure) {
    json["first_failure"] = report.workers[*report.first_failure].rank;
  }
  return lossy_text_of_json(json, 2) + "\n";
}

}  // namespace acc::launcher::report
