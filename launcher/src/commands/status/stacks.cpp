// SPDX-License-Identifier: Apache-2.0
// acclaunch stacks: where the threads of a job's workers are (docs/watching.md). A debugger reads
// the stacks, since no library does that for another process and is kept for it.
#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/settings/environment.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "commands/status/running_jobs.hpp"
#include "host/command_output.hpp"
#include "plan/program_command.hpp"
#include "report/torch_record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>

namespace acc::launcher::commands {
namespace {

constexpr std::chrono::seconds kReaderLimit{30};
/// Time in which a Python program answers by itself.
constexpr std::chrono::seconds kStacksLimit{2};
/// Stacks that are read at the same time.
constexpr std::size_t kAtOnce = 8;

/// The programs on PATH that read stacks; a command without its last word, the process ID.
struct Readers {
  std::vector<std::string> native;  ///< empty: neither gdb nor eu-stack is installed
  std::vector<std::string> python;  ///< empty: py-spy is not installed
};

Readers find_readers() {
  const settings::Environment environment = settings::current_environment();
  const auto find = [&](const char* name) {
    return plan::find_in_path(name, environment, std::filesystem::current_path());
  };
  Readers readers;
  if (const auto gdb = find("gdb")) {
    readers.native = {gdb->string(), "-nx", "-q", "-batch", "-ex", "thread apply all bt 40", "-p"};
  } else if (const auto eu_stack = find("eu-stack")) {
    readers.native = {eu_stack->string(), "-p"};
  }
  if (const auto py_spy = find("py-spy")) {
    readers.python = {py_spy->string(), "dump", "--pid"};
  }
  return readers;
}

/// Returns why stacks of processes that are not children cannot be read; empty if nothing is known.
std::string restriction() {
  std::ifstream file("/proc/sys/kernel/yama/ptrace_scope");
  int scope = 0;
  file >> scope;
  return scope == 0 ? "" : fmt::format(" (kernel.yama.ptrace_scope is {})", scope);
}

/// Runs a reader of stacks as the user of the worker: it opens the files that the worker has
/// mapped. Returns nullopt if it cannot read this process.
std::optional<std::string> read_by(std::vector<std::string> reader, const RunningWorker& worker) {
  if (reader.empty()) {
    return std::nullopt;
  }
  reader.push_back(std::to_string(worker.report.pid));
  auto text = host::command_output(reader, kReaderLimit, &worker.user);
  return text && !text->empty() && worker.process->is_alive() ? text : std::nullopt;
}

/// Returns the stacks of Python's threads, by py-spy or else by the worker itself.
std::optional<std::string> python_stacks_of(const RunningWorker& worker, const Readers& readers) {
  if (worker.program.starts_with("python")) {
    if (auto text = read_by(readers.python, worker)) {
      return text;
    }
  }
  return report::python_stacks(worker.files, kStacksLimit);
}

/// Returns the stacks of one worker with a headline; nullopt if no program on this machine can read
/// them. `brief`: Python's stacks or else the native ones, not both.
std::optional<std::string> stacks_of(const RunningJob& job, const RunningWorker& worker,
                                     const Readers& readers, bool brief) {
  const auto of_python = python_stacks_of(worker, readers);
  if (!of_python && readers.native.empty() && readers.python.empty()) {
    return std::nullopt;
  }
  std::string text = fmt::format("== job {}, rank {}, process {} ({}), {}\n{}", job.launcher,
                                 worker.report.rank, worker.report.pid, printable(worker.program),
                                 printable(worker.state), printable_lines(of_python.value_or("")));
  if (!of_python && worker.program.starts_with("python")) {
    text += "no stacks of Python: install py-spy, or see docs/watching.md\n";
  }
  if (readers.native.empty() || (of_python && brief)) {
    return text;
  }
  const auto native = read_by(readers.native, worker);
  return text +
         (native ? printable_lines(*native)
                 : fmt::format("{} could not read the stack of process {}{}\n",
                               std::filesystem::path(readers.native.front()).filename().string(),
                               worker.report.pid, restriction()));
}

}  // namespace

int stacks_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "acclaunch stacks [JOB] [--rank N]: prints the stacks of all threads of a running job's "
      "workers on this\nmachine, read by gdb or eu-stack, and for Python by py-spy, as far as they "
      "are installed, or else by a\nthread of the worker. Each worker stops while its stack is "
      "read. JOB is the process ID of an acclaunch,\nor a run ID or Slurm job ID; default: all "
      "jobs of this user.",
      "acclaunch stacks");
  std::string job;
  std::optional<int> rank;
  bool brief = false;
  parser.add_option("job", job, "process ID of an acclaunch, run ID or Slurm job ID");
  parser.add_option("--rank", rank, "only this rank");
  parser.add_flag("--brief", brief, "for Python programs only the stacks of Python");
  parser.parse(arguments);
  const std::vector<RunningJob> jobs = chosen_jobs(job, "stacks");
  const Readers readers = find_readers();
  std::vector<std::future<std::optional<std::string>>> texts;
  for (const RunningJob& each : jobs) {
    std::fputs(other_machines(jobs, each, "stacks").c_str(), stdout);
    for (const RunningWorker& worker : each.workers) {
      if (!rank || worker.report.rank == *rank) {
        texts.push_back(std::async(std::launch::async, [&each, &worker, &readers, brief] {
          return stacks_of(each, worker, readers, brief);
        }));
      }
      if (texts.size() % kAtOnce == 0 && !texts.empty()) {
        std::ranges::for_each(texts, [](const auto& text) { text.wait(); });
      }
    }
  }
  bool has_any = false;
  for (std::future<std::optional<std::string>>& text : texts) {
    const auto stacks = text.get();
    std::fputs(stacks.value_or("").c_str(), stdout);
    std::fflush(stdout);  // whoever ends this command early gets the first ones
    has_any = has_any || stacks;
  }
  if (texts.empty()) {
    throw Error(Errc::not_found, fmt::format("stacks: no rank {} on this machine", *rank));
  }
  if (!has_any) {
    throw Error(Errc::not_found, "stacks: install gdb, eu-stack (elfutils) or, for Python, py-spy");
  }
  return 0;
}

}  // namespace acc::launcher::commands
