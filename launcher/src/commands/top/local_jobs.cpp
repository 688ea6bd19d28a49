// SPDX-License-Identifier: Apache-2.0
#include "commands/status/running_jobs.hpp"
#include "commands/top/watched_job.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

namespace acc::launcher::commands {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

double unix_seconds(std::chrono::system_clock::time_point time) {
  return Seconds(time.time_since_epoch()).count();
}

std::string this_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

Json rank_json(const RunningWorker& worker, const std::string& host, double cpu_percent) {
  return {{"rank", worker.report.rank},
          {"local_rank", worker.report.local_rank},
          {"machine_rank", worker.report.machine_rank},
          {"host", host},
          {"pid", worker.report.pid},
          {"state", "running"},
          {"step", nullptr},
          {"loss", nullptr},
          {"tokens_per_s", nullptr},
          {"learning_rate", nullptr},
          {"gradient_norm", nullptr},
          {"step_s", nullptr},
          {"compute_s", nullptr},
          {"gather_s", nullptr},
          {"reduce_s", nullptr},
          {"wait_s", nullptr},
          {"memory", Json::object()},
          {"resident_bytes", worker.resident_bytes},
          {"cpu_percent", cpu_percent},
          {"gpu", nullptr},
          {"values", Json::object()},
          {"not_finite", Json::array()},
          {"last_heartbeat", unix_seconds(worker.report.ended_at)},
          {"last_report", nullptr}};
}

Json job_json(const RunningJob& job, Json machine) {
  return {{"format", 1},
          {"id", job.run_id.empty() ? std::to_string(job.launcher) : job.run_id},
          {"state", "running"},
          {"reason", ""},
          {"exit_status", nullptr},
          {"waiting_for", ""},
          {"created_at", unix_seconds(std::chrono::system_clock::now() - job.running_for)},
          {"ended_at", nullptr},
          {"round", nullptr},
          {"restarts", job.restarts},
          {"max_restarts", job.max_restarts},
          {"min_machines", 1},
          {"num_machines", job.num_machines},
          {"world_size", job.world_size},
          {"machines", Json::array({std::move(machine)})},
          {"step", nullptr},
          {"loss", nullptr},
          {"tokens_per_s", nullptr},
          {"learning_rate", nullptr},
          {"gradient_norm", nullptr},
          {"slowest_rank", nullptr},
          {"num_reporting", 0},
          {"last_heartbeat", unix_seconds(std::chrono::system_clock::now())},
          {"has_report", false},
          {"last_event", 0}};
}

}  // namespace

// The CPU time since the previous look, or since the start of the worker at the first.
std::vector<WatchedJob> LocalJobs::look() {
  std::vector<WatchedJob> result;
  std::map<pid_t, Sample> samples;
  const std::string host = this_host();
  const auto now = std::chrono::steady_clock::now();
  for (const RunningJob& job : job_.empty() ? running_jobs() : chosen_jobs(job_)) {
    Json ranks = Json::array();
    for (const RunningWorker& worker : job.workers) {
      const auto before = samples_.find(worker.report.pid);
      const bool is_known = before != samples_.end() && now > before->second.time;
      const Seconds cpu = worker.cpu_time - (is_known ? before->second.cpu : milliseconds(0));
      const Seconds time = is_known ? Seconds(now - before->second.time) : worker.running_for;
      samples[worker.report.pid] = {now, worker.cpu_time};
      ranks.push_back(rank_json(worker, host, time.count() > 0.0 ? 100.0 * (cpu / time) : 0.0));
    }
    Json machine = {{"machine_rank", job.workers.front().report.machine_rank},
                    {"host", host},
                    {"pid", job.launcher},
                    {"local_world_size", job.workers.size()},
                    {"state", "running"},
                    {"last_heartbeat", unix_seconds(std::chrono::system_clock::now())}};
    result.push_back({job_json(job, std::move(machine)), std::move(ranks)});
  }
  samples_ = std::move(samples);
  return result;
}

}  // namespace acc::launcher::commands
