// SPDX-License-Identifier: Apache-2.0
#include "report/machine_report.hpp"

#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "acc/base/text.hpp"
#include "output/last_lines.hpp"
#include "report/words.hpp"
#include "report/worker_json.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace acc::launcher::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxMessage = 4000;  // bytes
constexpr std::size_t kMaxLine = output::LastLines::kLineLength;
constexpr std::size_t kMaxTraceback = 50;  // lines
// Limit of all texts of one machine's report. JSON escapes one byte by up to six (\u001b), and the
// store limits a value to 8 MiB.
constexpr std::size_t kMaxTexts = std::size_t{1} << 20;
// If the texts exceed that, this much is kept per worker: enough for its line in the text report.
constexpr std::size_t kLeanHost = 100;
constexpr std::size_t kLeanText = 200;
constexpr std::size_t kLeanCollectives = 8;
constexpr std::size_t kCollectiveBytes = 200;  // estimated size of a collective in JSON

/// Returns the last `count` lines: the end of a traceback is its most useful part.
std::vector<std::string> last_lines(const std::vector<std::string>& lines, std::size_t count) {
  std::vector<std::string> kept;
  for (std::size_t i = lines.size() - std::min(count, lines.size()); i < lines.size(); ++i) {
    kept.push_back(clipped(lines[i], kMaxLine));
  }
  return kept;
}

/// Drops all collectives except the last `count`.
void keep_last(WorkerReport& worker, std::size_t count) {
  if (worker.flight && worker.flight->last.size() > count) {
    auto& last = worker.flight->last;
    last.erase(last.begin(), last.end() - static_cast<std::ptrdiff_t>(count));
  }
}

/// Returns the short form that is used if the machine's texts exceed kMaxTexts.
WorkerReport lean(WorkerReport worker) {
  worker.host = clipped(worker.host, kLeanHost);
  worker.cause = clipped(worker.cause, kLeanText);
  worker.error_message = clipped(worker.error_message, kLeanText);
  worker.traceback.clear();
  worker.last_stderr_lines.clear();
  if (worker.flight && worker.flight->failure) {
    worker.flight->failure->reason = clipped(worker.flight->failure->reason, kLeanText);
  }
  keep_last(worker, kLeanCollectives);
  return worker;
}

/// Returns the size of the worker's variable-length data, in bytes before JSON escapes it.
std::size_t text_bytes(const WorkerReport& worker) {
  std::size_t bytes = worker.host.size() + worker.cause.size() + worker.error_message.size();
  for (const auto* lines : {&worker.traceback, &worker.last_stderr_lines}) {
    for (const std::string& line : *lines) {
      bytes += line.size();
    }
  }
  if (worker.flight) {
    bytes += kCollectiveBytes * (worker.flight->last.size() + worker.flight->groups.size());
    bytes += worker.flight->failure ? worker.flight->failure->reason.size() : 0;
  }
  return bytes;
}

std::string dump(const MachineReport& report) {
  Json workers = Json::array();
  for (const WorkerReport& worker : report.workers) {
    workers.push_back(worker_json(worker));
  }
  const Json json = {{"machine_rank", report.machine_rank},
                     {"host", clipped(report.host, kMaxLine)},
                     {"workers", std::move(workers)}};
  return lossy_text_of_json(json);
}

}  // namespace

std::optional<std::size_t> first_failure(const std::vector<WorkerReport>& workers) {
  std::optional<std::size_t> first;
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const bool sooner =
        workers[i].failed() && (!first || workers[i].moment < workers[*first].moment);
    first = sooner ? i : first;
  }
  return first;
}

WorkerReport bounded(WorkerReport worker) {
  worker.host = clipped(worker.host, kMaxLine);
  worker.cause = clipped(worker.cause, kMaxLine);
  worker.error_message = clipped(worker.error_message, kMaxMessage);
  worker.traceback = last_lines(worker.traceback, kMaxTraceback);
  worker.last_stderr_lines = last_lines(worker.last_stderr_lines, output::LastLines::kLines);
  keep_last(worker, flight::file::kSlots);
  return worker;
}

std::string encode(const MachineReport& report) {
  MachineReport sent = report;
  std::ranges::transform(sent.workers, sent.workers.begin(), bounded);
  if (std::transform_reduce(sent.workers.begin(), sent.workers.end(), std::size_t{0}, std::plus(),
                            text_bytes) > kMaxTexts) {
    for (std::size_t i = 0; i < sent.workers.size(); ++i) {
      sent.workers[i] = i == sent.root_cause ? sent.workers[i] : lean(std::move(sent.workers[i]));
    }
  }
  return dump(sent);
}

const std::string& WorkerReport::message() const {
  return error_message.empty() && flight && flight->failure ? flight->failure->reason
                                                            : error_message;
}

int WorkerReport::exit_status() const {
  return end && !stuck ? end->shell_status() : kTimedOut;
}

MachineReport decode_machine_report(std::string_view text) {
  const Json json = json_from_text<Json>(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    throw Error(Errc::protocol, "the report of another machine must be JSON, it is \"" +
                                    printable(clipped(text, 80)) + "\"");
  }
  const ReportFields fields(json, "the report of another machine");
  MachineReport report{
      .machine_rank = fields.number("machine_rank", 0), .host = fields.text("host"), .workers = {}};
  for (const Json& worker : fields.array("workers")) {
    const std::string where = "the report of machine " + std::to_string(report.machine_rank) +
                              ", worker " + std::to_string(report.workers.size());
    report.workers.push_back(worker_report(ReportFields(worker, where)));
  }
  return report;
}

}  // namespace acc::launcher::report
