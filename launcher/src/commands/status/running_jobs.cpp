// SPDX-License-Identifier: Apache-2.0
#include "commands/status/running_jobs.hpp"

#include "acc/base/error.hpp"
#include "acc/base/flight_record.hpp"
#include "acc/base/text.hpp"
#include "supervision/process_state.hpp"

#include <unistd.h>

#include <algorithm>
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

/// Times of a process in /proc/PID/stat.
struct Times {
  milliseconds cpu{0};
  milliseconds started{0};  ///< since the start of the machine
};

std::optional<Times> times_of(const fs::path& process) {
  const std::string stat = text_of(process / "stat");
  const auto end = stat.rfind(')');
  if (end == std::string::npos) {
    return std::nullopt;
  }
  std::istringstream fields(stat.substr(end + 1));  // begins with field 3
  const std::vector<std::string> words{std::istream_iterator<std::string>(fields), {}};
  if (words.size() < 20) {
    return std::nullopt;
  }
  const long per_second = ::sysconf(_SC_CLK_TCK);
  const auto in_milliseconds = [&](const std::string& ticks) {
    return milliseconds(parse_integer(ticks).value_or(0) * 1000 / per_second);
  };
  return Times{in_milliseconds(words[11]) + in_milliseconds(words[12]), in_milliseconds(words[19])};
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

std::optional<RunningWorker> worker_of(const Candidate& candidate, const fs::path& proc) {
  const fs::path process = proc / std::to_string(candidate.pid);
  const auto number = [&](const char* name) {
    const auto found = candidate.environment.find(name);
    return found == candidate.environment.end() ? std::nullopt : read_number(found->second);
  };
  const auto rank = number("RANK");
  const auto times = times_of(process);
  if (!rank || !times) {
    return std::nullopt;
  }
  RunningWorker worker;
  worker.report.rank = *rank;
  worker.report.local_rank = number("LOCAL_RANK").value_or(0);
  worker.report.machine_rank = number("GROUP_RANK").value_or(0);
  worker.report.pid = candidate.pid;
  worker.report.flight = flight::read_record(candidate.environment.at(flight::kRecordVariable));
  worker.report.ended_at = std::chrono::system_clock::now();
  worker.program = executable(process).filename().string();
  worker.state = supervision::describe_state(candidate.pid, proc);
  worker.cpu_time = times->cpu;
  return worker;
}

}  // namespace

std::vector<RunningJob> running_jobs(const fs::path& proc) {
  const std::map<pid_t, Candidate> candidates = candidates_in(proc);
  std::map<pid_t, RunningJob> jobs;
  for (const auto& [pid, candidate] : candidates) {
    // A child of a worker has inherited the worker's variables.
    const auto parent = candidates.find(candidate.parent);
    if (parent != candidates.end() && parent->second.environment.at(flight::kRecordVariable) ==
                                          candidate.environment.at(flight::kRecordVariable)) {
      continue;
    }
    auto worker = worker_of(candidate, proc);
    if (!worker) {
      continue;
    }
    const pid_t launcher = launcher_of(candidate.parent, proc);
    RunningJob& job = jobs[launcher];
    job.launcher = launcher;
    job.workers.push_back(std::move(*worker));
  }
  std::vector<RunningJob> result;
  const milliseconds now = time_since_boot(proc);
  for (auto& [launcher, job] : jobs) {
    const fs::path process = proc / std::to_string(launcher);
    job.command = command_line(process);
    if (const auto times = times_of(process)) {
      job.running_for = std::max(milliseconds(0), now - times->started);
    }
    std::ranges::sort(job.workers, {}, [](const RunningWorker& each) { return each.report.rank; });
    result.push_back(std::move(job));
  }
  return result;
}

std::vector<RunningJob> chosen_jobs(const std::string& launcher) {
  const auto pid = read_number(launcher);
  if (!launcher.empty() && !pid) {
    throw Error(Errc::invalid_argument, "JOB must be the process ID of an acclaunch, found \"" +
                                            printable(launcher) + "\"");
  }
  std::vector<RunningJob> jobs = running_jobs();
  if (pid) {
    std::erase_if(jobs, [&](const RunningJob& job) { return job.launcher != *pid; });
  }
  if (jobs.empty()) {
    throw Error(Errc::not_found,
                pid ? "process " + launcher + " is not an acclaunch with workers on this machine"
                    : "no acclaunch of this user has workers on this machine");
  }
  return jobs;
}

}  // namespace acc::launcher::commands
