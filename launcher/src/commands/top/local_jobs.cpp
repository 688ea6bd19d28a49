// SPDX-License-Identifier: Apache-2.0
#include "acc/base/json.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/rendezvous/board_json.hpp"
#include "commands/status/running_jobs.hpp"
#include "commands/top/watched_job.hpp"
#include "report/late_ranks.hpp"

#include <algorithm>
#include <utility>

namespace acc::launcher::commands {
namespace {

using rendezvous::Board;
using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

Board::WatchedRank watched(const RunningWorker& worker, double cpu_percent,
                           rendezvous::Pace& pace) {
  Board::WatchedRank rank{.status = {.rank = worker.report.rank,
                                     .local_rank = worker.report.local_rank,
                                     .pid = worker.report.pid,
                                     .state = rendezvous::RankStatus::State::running,
                                     .resident_bytes = worker.resident_bytes,
                                     .cpu_percent = cpu_percent},
                          .machine_rank = worker.report.machine_rank,
                          .last_heartbeat = worker.report.ended_at};
  if (worker.report.flight && worker.report.flight->metrics) {
    const flight::Metrics& reported = *worker.report.flight->metrics;
    rank.status.metrics = reported.values;
    rank.last_report = Board::Time(std::chrono::microseconds(reported.reported_us));
  }
  if (worker.report.flight) {
    report::add_collective(*worker.report.flight, worker.report.ended_at, rank.status);
  }
  if (rank.status.waiting_for) {
    rank.waits_since = worker.report.ended_at - *rank.status.waiting_for;
  }
  pace.add(rank.status, worker.report.ended_at);
  rank.pace = pace;
  return rank;
}

/// Returns the job as a server would show it, but with the ranks of this machine only.
Board::Job watched(const RunningJob& job, std::vector<Board::WatchedRank> ranks) {
  const auto now = std::chrono::system_clock::now();
  const int machine_rank = job.workers.front().report.machine_rank;
  const std::string host = host_name();
  Board::Job result;
  result.id = job.run_id.empty() ? std::to_string(job.launcher) : job.run_id;
  result.terms.num_machines = job.num_machines;
  result.terms.max_restarts = job.max_restarts;
  result.state = Board::JobState::running;
  result.created_at = now - job.running_for;
  result.ranks = std::move(ranks);
  Board::WatchedMachine& machine = result.machines[0];
  machine.machine.host = host;
  machine.machine.local_world_size = static_cast<int>(job.workers.size());
  machine.machine.pid = job.launcher;
  machine.rank = machine_rank;
  machine.state = Board::MachineState::running;
  machine.last_heartbeat = now;
  Board::WatchedRound& round = result.rounds.emplace_back();
  round.restarts = job.restarts;
  round.world_size = job.world_size;
  round.machines.resize(static_cast<std::size_t>(machine_rank) + 1, {.host = host});
  return result;
}

}  // namespace

std::vector<std::string> LocalJobs::advice() const {
  return {"no jobs of this user run on this machine. To start one:", "  acclaunch train.py",
          "To watch the jobs of a server:", "  acclaunch top --rdzv_endpoint HOST:PORT"};
}

// The CPU time since the previous look, or since the start of the worker at the first.
std::vector<WatchedJob> LocalJobs::look() {
  std::vector<WatchedJob> result;
  std::map<pid_t, Sample> samples;
  const auto now = std::chrono::steady_clock::now();
  for (const RunningJob& job : job_.empty() ? running_jobs() : chosen_jobs(job_, "status")) {
    std::vector<Board::WatchedRank> ranks;
    for (const RunningWorker& worker : job.workers) {
      const auto before = samples_.find(worker.report.pid);
      const bool is_known = before != samples_.end() && now > before->second.time;
      const Seconds cpu = worker.cpu_time - (is_known ? before->second.cpu : milliseconds(0));
      const Seconds time = is_known ? Seconds(now - before->second.time) : worker.running_for;
      Sample& sample = samples[worker.report.pid];
      sample = {now, worker.cpu_time, is_known ? before->second.pace : rendezvous::Pace()};
      ranks.push_back(
          watched(worker, time.count() > 0.0 ? 100.0 * (cpu / time) : 0.0, sample.pace));
    }
    const Board::Job shown = watched(job, std::move(ranks));
    WatchedJob& each = result.emplace_back();
    each.job = json_from_text<nlohmann::json>(rendezvous::watch::job_json(shown));
    each.job["round"] = nullptr;  // not known here
    each.ranks = json_from_text<nlohmann::json>(rendezvous::watch::whole(
        rendezvous::watch::ranks_json([&] { return &shown; }, 0, SIZE_MAX)))["ranks"];
  }
  samples_ = std::move(samples);
  return result;
}

}  // namespace acc::launcher::commands
