// SPDX-License-Identifier: Apache-2.0
#include "commands/status/running_jobs.hpp"

#include "acc/base/error.hpp"
#include "acc/base/flight_record.hpp"
#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"
#include "acc/launcher/host_facts.hpp"
#include "acc/settings/environment.hpp"
#include "host/command_output.hpp"
#include "plan/program_command.hpp"
#include "report/torch_record.hpp"
#include "report/words.hpp"
#include "supervision/descriptors.hpp"
#include "supervision/process_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

namespace acc::launcher::commands {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

/// Time in which Python programs answer with torch's records.
constexpr milliseconds kTorchLimit{2000};
constexpr milliseconds kSlurmLimit{10'000};
const fs::path kProc = "/proc";

/// Returns the variables of a process; none if they cannot be read.
std::map<std::string, std::string> environment_of(const supervision::ProcessHandle& process) {
  std::map<std::string, std::string> variables;
  const std::string text = process.read("environ");
  for (const std::string_view entry : split(text, '\0')) {
    if (const auto equals = entry.find('='); equals != std::string_view::npos) {
      variables.emplace(entry.substr(0, equals), entry.substr(equals + 1));
    }
  }
  return variables;
}

std::string command_line(pid_t pid) {
  const std::string text = supervision::ProcessHandle(pid).read("cmdline");
  const auto words = split(std::string_view(text).substr(0, text.find_last_not_of('\0') + 1), '\0');
  return report::shell_line({words.begin(), words.end()});
}

fs::path executable(pid_t pid) {
  std::error_code error;
  return fs::read_symlink(kProc / std::to_string(pid) / "exe", error);
}

milliseconds time_since_boot() {
  double seconds = 0.0;
  std::ifstream(kProc / "uptime") >> seconds;
  return milliseconds(static_cast<std::int64_t>(seconds * 1000.0));
}

/// A process with the variables of a worker.
struct Candidate {
  pid_t pid = 0;
  pid_t parent = 0;
  std::shared_ptr<const supervision::ProcessHandle> process;
  spawn::User user;
  std::map<std::string, std::string> environment;
};

/// Returns nullopt for a process that is no worker, or has ended.
std::optional<Candidate> candidate_of(pid_t pid) {
  auto process = std::make_shared<const supervision::ProcessHandle>(pid);
  auto environment = environment_of(*process);
  if (!environment.contains(flight::kRecordVariable) || !environment.contains("RANK")) {
    return std::nullopt;
  }
  const auto user = process->user();
  const auto state = supervision::process_state(pid);
  if (!user || !state || !process->is_alive()) {
    return std::nullopt;
  }
  return Candidate{pid, state->parent, std::move(process), *user, std::move(environment)};
}

std::map<pid_t, Candidate> find_candidates() {
  std::map<pid_t, Candidate> candidates;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(kProc, error)) {
    const auto pid = read_number(entry.path().filename().string());
    if (auto candidate = pid ? candidate_of(*pid) : std::nullopt) {
      candidate->process.reset();  // most candidates are children of workers
      candidates.emplace(*pid, std::move(*candidate));
    }
  }
  return candidates;
}

/// Returns the process that the user started: the guardian, which is the parent of the keeper,
/// which is the parent of the supervisor. Where an ancestor is another program, its child.
pid_t launcher_of(pid_t supervisor) {
  pid_t pid = supervisor;
  const fs::path program = executable(supervisor);
  for (int i = 0; i < 2; ++i) {
    const auto state = supervision::process_state(pid);
    if (!state || executable(state->parent) != program) {
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

/// Returns nullopt if the process has ended.
std::optional<RunningWorker> worker_of(pid_t pid, milliseconds now) {
  const auto found = candidate_of(pid);
  if (!found) {
    return std::nullopt;
  }
  const Candidate& candidate = *found;
  const auto rank = number_in(candidate, "RANK");
  const auto usage = supervision::process_usage(candidate.pid);
  if (!rank || !usage) {
    return std::nullopt;
  }
  RunningWorker worker;
  worker.report.rank = *rank;
  worker.report.local_rank = number_in(candidate, "LOCAL_RANK").value_or(0);
  worker.report.machine_rank = number_in(candidate, "GROUP_RANK").value_or(0);
  worker.report.pid = candidate.pid;
  worker.process = candidate.process;
  worker.user = candidate.user;
  worker.files = report::RecordFiles(*candidate.process, candidate.user,
                                     candidate.environment.at(flight::kRecordVariable));
  worker.report.flight = report::read_own_record(worker.files);
  worker.report.ended_at = std::chrono::system_clock::now();
  worker.program = executable(candidate.pid).filename().string();
  worker.state = supervision::describe_state(candidate.pid);
  worker.cpu_time = usage->cpu;
  worker.running_for = std::max(milliseconds(0), now - usage->started);
  worker.resident_bytes = usage->resident_bytes;
  return candidate.process->is_alive() ? std::optional(std::move(worker)) : std::nullopt;
}

/// Returns the number of a Slurm job, or "" for other text: the number is put in commands that are
/// proposed to the user.
std::string slurm_id(std::string text) {
  return text.find_first_not_of("0123456789") == std::string::npos ? std::move(text) : "";
}

/// Fills in what a worker's environment says about its job.
void describe(const Candidate& worker, RunningJob& job) {
  const auto text = [&](const char* name) {
    const auto found = worker.environment.find(name);
    return found == worker.environment.end() ? std::string() : found->second;
  };
  job.run_id = text("TORCHELASTIC_RUN_ID");
  job.identity = fmt::format("{} {}:{} {}", worker.user.uid, text("MASTER_ADDR"),
                             text("MASTER_PORT"), job.run_id);
  job.slurm_job = slurm_id(text("SLURM_JOB_ID"));
  if (const std::string array = slurm_id(text("SLURM_ARRAY_JOB_ID")); !array.empty()) {
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
      plan::find_in_path("squeue", settings::current_environment(), fs::current_path());
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

std::vector<RunningJob> running_jobs() {
  static const supervision::DescriptorLimit limit;  // raised: each worker needs two descriptors
  const std::map<pid_t, Candidate> candidates = find_candidates();
  std::map<std::pair<pid_t, uid_t>, RunningJob> jobs;
  const milliseconds now = time_since_boot();
  for (const auto& [pid, candidate] : candidates) {
    // A child of a worker has inherited the worker's variables.
    const auto parent = candidates.find(candidate.parent);
    if (parent != candidates.end() && parent->second.environment.at(flight::kRecordVariable) ==
                                          candidate.environment.at(flight::kRecordVariable)) {
      continue;
    }
    auto worker = worker_of(pid, now);
    if (!worker) {
      continue;
    }
    const pid_t launcher = launcher_of(candidate.parent);
    RunningJob& job = jobs[{launcher, worker->user.uid}];
    job.launcher = launcher;
    job.supervisor = candidate.parent;
    describe(candidate, job);
    job.workers.push_back(std::move(*worker));
  }
  std::vector<RunningJob> result;
  for (auto& [_, job] : jobs) {
    job.command = command_line(job.launcher);
    if (const auto usage = supervision::process_usage(job.launcher)) {
      job.running_for = std::max(milliseconds(0), now - usage->started);
    }
    std::ranges::sort(job.workers, {}, [](const RunningWorker& each) { return each.report.rank; });
    result.push_back(std::move(job));
  }
  return result;
}

void add_torch_records(std::vector<RunningJob>& jobs) {
  std::vector<report::RecordFiles> to_ask;
  for (const RunningJob& job : jobs) {
    for (const RunningWorker& worker : job.workers) {
      if (!worker.has_collectives()) {
        to_ask.push_back(worker.files);
      }
    }
  }
  report::ask_for_torch_records(to_ask, kTorchLimit);
  for (RunningJob& job : jobs) {
    for (RunningWorker& worker : job.workers) {
      if (!worker.has_collectives()) {
        worker.report.flight = report::read_any_record(worker.files, worker.report.rank);
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
  const bool asks_all = process_variable("SLURM_STEP_NUM_NODES").value_or("1") != "1";
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
    if (each.identity == job.identity) {
      for (const RunningWorker& worker : each.workers) {
        reports.push_back(worker.report);
      }
    }
  }
  std::ranges::sort(reports, {}, &report::WorkerReport::rank);
  return reports;
}

}  // namespace acc::launcher::commands
