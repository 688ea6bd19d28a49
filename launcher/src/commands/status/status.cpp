// SPDX-License-Identifier: Apache-2.0
// acclaunch status: what the ranks of running jobs do (docs/watching.md).
#include "acc/base/json.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/slowest_rank.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "commands/status/running_jobs.hpp"
#include "report/late_ranks.hpp"
#include "report/words.hpp"
#include "report/worker_json.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdio>

namespace acc::launcher::commands {
namespace {

using OrderedJson = nlohmann::ordered_json;

double seconds(std::chrono::milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

/// Returns the rank that the others wait for, by the rule of `top` and of the status page. This is
/// one look, so that only waiting in a collective counts.
std::optional<int> slowest_of(const RunningJob& job) {
  std::vector<rendezvous::Pace> paces(job.workers.size());
  std::vector<const rendezvous::Pace*> ranks;
  for (std::size_t i = 0; i < paces.size(); ++i) {
    const report::WorkerReport& worker = job.workers[i].report;
    rendezvous::RankStatus status{.state = rendezvous::RankStatus::State::running};
    if (worker.flight) {
      report::add_collective(*worker.flight, worker.ended_at, status);
    }
    paces[i].add(status, worker.ended_at);
    ranks.push_back(&paces[i]);
  }
  const auto slowest = rendezvous::slowest_rank(ranks);
  return slowest ? std::optional(job.workers[*slowest].report.rank) : std::nullopt;
}

std::string text_of(const std::vector<RunningJob>& jobs, const RunningJob& job) {
  std::string text = fmt::format("job {}, running for {}: {}\n", job.launcher,
                                 report::time_span(job.running_for), printable(job.command));
  text += other_machines(jobs, job, "status");
  text += fmt::format("  {:>5}  {:>8}  {:>9}  {:<16}  {:<24}  {}\n", "rank", "pid", "CPU s",
                      "program", "state", "waits in");
  for (const RunningWorker& worker : job.workers) {
    const std::string line = fmt::format(
        "  {:>5}  {:>8}  {:>9.2f}  {:<16}  {:<24}  {}", worker.report.rank, worker.report.pid,
        seconds(worker.cpu_time), printable(worker.program), printable(worker.state),
        worker.report.flight ? report::wait_of(*worker.report.flight, worker.report.ended_at) : "");
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  const auto reports = reports_of(jobs, job);
  text += report::last_collectives(reports, report::late_ranks(reports, std::nullopt));
  if (const auto slowest = slowest_of(job)) {
    text += fmt::format("  slowest   rank {}: others wait for it\n", *slowest);
  }
  return text;
}

OrderedJson json_of(const std::vector<RunningJob>& jobs, const RunningJob& job) {
  OrderedJson object = {{"launcher_pid", job.launcher},
                        {"command", printable(job.command)},
                        {"running_for_s", seconds(job.running_for)},
                        {"slowest_rank", OrderedJson()},
                        {"ranks", OrderedJson::array()},
                        {"late", OrderedJson::array()}};
  if (const auto slowest = slowest_of(job)) {
    object["slowest_rank"] = *slowest;
  }
  for (const RunningWorker& worker : job.workers) {
    OrderedJson& rank = object["ranks"].emplace_back();
    rank["rank"] = worker.report.rank;
    rank["local_rank"] = worker.report.local_rank;
    rank["machine_rank"] = worker.report.machine_rank;
    rank["pid"] = worker.report.pid;
    rank["program"] = printable(worker.program);
    rank["state"] = printable(worker.state);
    rank["cpu_s"] = seconds(worker.cpu_time);
    rank["flight"] =
        worker.report.flight ? report::flight_json(*worker.report.flight) : OrderedJson();
  }
  for (const report::LateRanks& late : report::late_ranks(reports_of(jobs, job), std::nullopt)) {
    object["late"].push_back(report::late_json(late));
  }
  return object;
}

}  // namespace

int status_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "acclaunch status [JOB]: prints what the ranks of a running job do on this machine: their "
      "state,\ntheir last collective, and the ranks that others wait for. JOB is the process ID of "
      "an acclaunch, or a\nrun ID or Slurm job ID; default: all jobs of this user.",
      "acclaunch status");
  std::string job;
  bool as_json = false;
  parser.add_option("job", job, "process ID of an acclaunch, run ID or Slurm job ID");
  parser.add_flag("--json", as_json, "print a JSON list, a list element for each job");
  parser.parse(arguments);
  std::string text;
  OrderedJson list = OrderedJson::array();
  std::vector<RunningJob> jobs = chosen_jobs(job, "status");
  add_torch_records(jobs);
  for (const RunningJob& each : jobs) {
    if (as_json) {
      list.push_back(json_of(jobs, each));
    } else {
      text += text_of(jobs, each);
    }
  }
  std::fputs((as_json ? text_of_json(list, 2) + "\n" : text).c_str(), stdout);
  return 0;
}

}  // namespace acc::launcher::commands
