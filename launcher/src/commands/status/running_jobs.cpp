// SPDX-License-Identifier: Apache-2.0
#include "commands/status/running_jobs.hpp"

#include "acc/base/error.hpp"
#include "acc/base/flight_record.hpp"
#include "acc/base/text.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/plugins/environment.hpp"
#include "host/command_output.hpp"
#include "plan/program_command.hpp"
#include "report/torch_record.hpp"
#include "report/words.hpp"
#include "supervision/process_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

namespace acc::launcher::commands {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// Time in which Python programs answer with torch's records.
constexpr milliseconds kTorchLimit{2000};
constexpr milliseconds kSlurmLimit{10'000};

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Returns the variables of a process; none if they cannot be read.
std::map<std::string, std::string> environment_of(const fs::path& process) {
  std::map<std::string, std::string> variables;
  const std::string text = text_of(process / "environ");
  for (const std::string_view entry : split(text, '\0')) {
    if (const auto equals = entry.find('='); equals != std::string_view::npos) {
      variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  return variables;
}

std::string command_line(const fs::path& process) {
  std::string text = text_of(process / "cmdline");
  while (text.ends_with('\0')) {
    text.pop_back();
  }
  std::string words;
  for (const std::string_view word : split(text, '\0')) {
    words += (words.empty() ? "" : " ") + shell_quoted(std::string(word));
  }
  return words;
}

fs::path executable(const fs::path& process) {
  std::error_code error;
  return fs::read_symlink(process / "exe", error);
}

milliseconds time_since_boot(const fs::path& proc) {
  double seconds = 0.0;
  std::istringstream(text_of(proc / "uptime")) >> seconds;
  return milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
}

/// A process with the variables of a worker.
struct Candidate {
  pid_t pid = 0;
  pid_t parent = 0;
  std::map<std::string, std::string> environment;
};

std::map<pid_t, Candidate> candidates_in(const fs::path& proc) {
  std::map<pid_t, Candidate> candidates;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(proc, error)) {
    const auto pid = read_number(entry.path().filename().string());
    if (!pid) {
      continue;
    }
    auto environment = environment_of(entry.path());
    const auto state = supervision::process_state(*pid, proc);
    if (state && environment.contains(flight::kRecordVariable) && environment.contains("RANK")) {
      candidates[*pid] = {*pid, state->parent, std::move(environment)};
    }
  }
  return candidates;
}

/// Returns the process that the user started: the guardian, which is the parent of the keeper,
/// which is the parent of the supervisor. Where an ancestor is another program, its child.
pid_t launcher_of(pid_t supervisor, const fs::path& proc) {
  pid_t pid = supervisor;
  const fs::path program = executable(proc / std::to_string(supervisor));
  for (int i = 0; i < 2; ++i) {
    const auto state = supervision::process_state(pid, proc);
    if (!state || executable(proc / std::to_string(state->parent)) != program) {
      break;
    }
    pid = state->parent;
  }
  return pid;
}

std::optional<int> number_in(const Candidate& candidate, const char* name) {
  const auto found = candidate.environment.find(name);
  return found == candidate.environment.end() ? std::nullopt : read_number(found->second);
}

std::optional<RunningWorker> worker_of(const Candidate& candidate, const fs::path& proc,
                                       milliseconds now) {
  const fs::path process = proc / std::to_string(candidate.pid);
  const auto rank = number_in(candidate, "RANK");
  const auto usage = supervision::process_usage(candidate.pid, proc);
  if (!rank || !usage) {
    return std::nullopt;
  }
  RunningWorker worker;
  worker.report.rank = *rank;
  worker.report.local_rank = number_in(candidate, "LOCAL_RANK").value_or(0);
  worker.report.machine_rank = number_in(candidate, "GROUP_RANK").value_or(0);
  worker.report.pid = candidate.pid;
  worker.record = candidate.environment.at(flight::kRecordVariable);
  worker.report.flight = flight::read_record(worker.record);
  worker.report.ended_at = std::chrono::system_clock::now();
  worker.program = executable(process).filename().string();
  worker.state = supervision::describe_state(candidate.pid, proc);
  worker.cpu_time = usage->cpu;
  worker.running_for = std::max(milliseconds(0), now - usage->started);
  worker.resident_bytes = usage->resident_bytes;
  return worker;
}

/// Fills in what a worker's environment says about its job.
void describe(const Candidate& worker, RunningJob& job) {
  const auto text = [&](const char* name) {
    const auto found = worker.environment.find(name);
    return found == worker.environment.end() ? std::string() : found->second;
  };
  job.run_id = text("TORCHELASTIC_RUN_ID");
  job.identity = text("MASTER_ADDR") + ":" + text("MASTER_PORT") + " " + job.run_id;
  job.slurm_job = text("SLURM_JOB_ID");
  if (const std::string array = text("SLURM_ARRAY_JOB_ID"); !array.empty()) {
    job.slurm_array_element = array + "_" + text("SLURM_ARRAY_TASK_ID");
  }
  job.restarts = number_in(worker, "TORCHELASTIC_RESTART_COUNT").value_or(0);
  job.max_restarts = number_in(worker, "TORCHELASTIC_MAX_RESTARTS").value_or(0);
  job.world_size = number_in(worker, "WORLD_SIZE").value_or(0);
  job.num_machines =
      number_in(worker, "GROUP_WORLD_SIZE").value_or(number_in(worker, "CROSS_SIZE").value_or(1));
}

/// Returns the line of the shell that runs `acclaunch COMMAND JOB` on all machines of a Slurm job.
std::string on_all_machines(std::string_view slurm_job, std::string_view num_machines,
                            const std::string& command) {
  return fmt::format("srun --jobid={0} --overlap --nodes={1} --ntasks-per-node=1 acclaunch {2} {0}",
                     slurm_job, num_machines, command);
}

/// Returns what Slurm knows about a job that has no workers on this machine; empty if there is no
/// such job, or no squeue.
std::string slurm_answer(const std::string& job, const std::string& command) {
  const bool may_be_slurms = !job.empty() && job.find_first_not_of("0123456789_") == job.npos;
  const auto squeue =
      plan::find_in_path("squeue", plugins::current_environment(), fs::current_path());
  if (!may_be_slurms || !squeue) {
    return {};
  }
  const auto lines = host::command_output(
      {squeue->string(), "--noheader", "--jobs=" + job, "--format=%A %T %D %N"}, kSlurmLimit);
  std::string text;
  const std::string answer = lines.value_or("");
  for (const std::string_view line : split(answer, '\n')) {
    const std::vector<std::string_view> words = split(trimmed(line), ' ');
    if (words.size() == 4 && words[1] == "RUNNING") {
      text += fmt::format("; it runs on {}: {}", printable(std::string(words[3])),
                          on_all_machines(words[0], words[2], command));
    } else if (words.size() >= 2) {
      text += fmt::format("; Slurm job {} is {}", words[0], words[1]);
    }
  }
  return text;
}

}  // namespace

std::vector<RunningJob> running_jobs(const fs::path& proc) {
  const std::map<pid_t, Candidate> candidates = candidates_in(proc);
  std::map<pid_t, RunningJob> jobs;
  const milliseconds now = time_since_boot(proc);
  for (const auto& [pid, candidate] : candidates) {
    // A child of a worker has inherited the worker's variables.
    const auto parent = candidates.find(candidate.parent);
    if (parent != candidates.end() && parent->second.environment.at(flight::kRecordVariable) ==
                                          candidate.environment.at(flight::kRecordVariable)) {
      continue;
    }
    auto worker = worker_of(candidate, proc, now);
    if (!worker) {
      continue;
    }
    const pid_t launcher = launcher_of(candidate.parent, proc);
    RunningJob& job = jobs[launcher];
    job.launcher = launcher;
    job.supervisor = candidate.parent;
    describe(candidate, job);
    job.workers.push_back(std::move(*worker));
  }
  std::vector<RunningJob> result;
  for (auto& [launcher, job] : jobs) {
    const fs::path process = proc / std::to_string(launcher);
    job.command = command_line(process);
    if (const auto usage = supervision::process_usage(launcher, proc)) {
      job.running_for = std::max(milliseconds(0), now - usage->started);
    }
    std::ranges::sort(job.workers, {}, [](const RunningWorker& each) { return each.report.rank; });
    result.push_back(std::move(job));
  }
  return result;
}

void add_torch_records(std::vector<RunningJob>& jobs) {
  std::vector<std::string> to_ask;
  for (const RunningJob& job : jobs) {
    for (const RunningWorker& worker : job.workers) {
      if (!worker.has_collectives()) {
        to_ask.push_back(worker.record);
      }
    }
  }
  report::ask_for_torch_records(to_ask, kTorchLimit);
  for (RunningJob& job : jobs) {
    for (RunningWorker& worker : job.workers) {
      if (!worker.has_collectives()) {
        worker.report.flight = report::read_any_record(worker.record, worker.report.rank);
        worker.report.ended_at = std::chrono::system_clock::now();
      }
    }
  }
}

std::vector<RunningJob> chosen_jobs(const std::string& job, const std::string& command) {
  std::vector<RunningJob> jobs = running_jobs();
  if (!job.empty()) {
    std::erase_if(jobs, [&](const RunningJob& each) {
      return each.run_id != job && each.slurm_job != job && each.slurm_array_element != job &&
             std::to_string(each.launcher) != job && std::to_string(each.supervisor) != job;
    });
  }
  if (jobs.empty()) {
    throw Error(Errc::not_found,
                job.empty()
                    ? "no acclaunch of this user has workers on this machine"
                    : fmt::format("no acclaunch on this machine ({}) has workers and the process "
                                  "ID, run ID or Slurm job ID \"{}\"",
                                  host_name(), printable(job)) +
                          slurm_answer(job, command));
  }
  return jobs;
}

std::string other_machines(const std::vector<RunningJob>& jobs, const RunningJob& job,
                           const std::string& command) {
  std::vector<int> here;
  for (const report::WorkerReport& worker : reports_of(jobs, job)) {
    here.push_back(worker.rank);
  }
  if (job.num_machines < 2 || std::ssize(here) >= job.world_size) {
    return {};
  }
  // A step of Slurm on several machines asks them all.
  const char* const machines_of_step = std::getenv("SLURM_STEP_NUM_NODES");
  const bool asks_all = machines_of_step != nullptr && std::string_view(machines_of_step) != "1";
  const std::string how =
      asks_all ? ""
      : job.slurm_job.empty()
          ? fmt::format("; run `acclaunch {}` on the other machines too", command)
          : "; on all machines: " +
                on_all_machines(job.slurm_job, std::to_string(job.num_machines), command);
  return fmt::format("  {} of {} on this machine, {}{}\n", report::numbered("rank", here),
                     job.world_size, host_name(), how);
}

std::vector<report::WorkerReport> reports_of(const std::vector<RunningJob>& jobs,
                                             const RunningJob& job) {
  std::vector<report::WorkerReport> reports;
  for (const RunningJob& each : jobs) {
    if (each.launcher == job.launcher || each.identity == job.identity) {
      for (const RunningWorker& worker : each.workers) {
        reports.push_back(worker.report);
      }
    }
  }
  std::ranges::sort(reports, {}, &report::WorkerReport::rank);
  return reports;
}

}  // namespace acc::launcher::commands
