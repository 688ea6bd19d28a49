// SPDX-License-Identifier: Apache-2.0
// acclaunch stacks: where the threads of a job's workers are (docs/watching.md). A debugger reads
// the stacks, since no library does that for another process and is kept for it.
#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/plugins/environment.hpp"
#include "commands/commands.hpp"
#include "commands/options.hpp"
#include "commands/status/running_jobs.hpp"
#include "host/command_output.hpp"
#include "plan/program_command.hpp"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <optional>

namespace acc::launcher::commands {
namespace {

constexpr std::chrono::seconds kReaderLimit{30};
/// Stacks that are read at the same time.
constexpr std::size_t kAtOnce = 8;

/// The programs on PATH that read stacks; a command without its last word, the process ID.
struct Readers {
  std::vector<std::string> native;  ///< empty: neither gdb nor eu-stack is installed
  std::vector<std::string> python;  ///< empty: py-spy is not installed
};

Readers find_readers() {
  const plugins::Environment environment = plugins::current_environment();
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
  return scope == 0 ? "" : fmt::format(" (kernel.yama.ptrace_scope is {}; root may)", scope);
}

std::string stack_of(std::vector<std::string> reader, pid_t pid) {
  const std::string name = std::filesystem::path(reader.front()).filename().string();
  reader.push_back(std::to_string(pid));
  const auto text = host::command_output(reader, kReaderLimit);
  return text && !text->empty() ? printable_lines(*text)
                                : fmt::format("{} could not read the stack of process {}{}\n", name,
                                              pid, restriction());
}

/// Returns the stacks of one worker with a headline. `brief`: Python's stacks or else the native
/// ones, not both.
std::string stacks_of(const RunningJob& job, const RunningWorker& worker, const Readers& readers,
                      bool brief) {
  std::string text =
      fmt::format("== job {}, rank {}, process {} ({}), {}\n", job.launcher, worker.report.rank,
                  worker.report.pid, printable(worker.program), printable(worker.state));
  const bool is_python = !readers.python.empty() && worker.program.starts_with("python");
  if (is_python) {
    text += stack_of(readers.python, worker.report.pid);
  }
  if (!readers.native.empty() && !(is_python && brief)) {
    text += stack_of(readers.native, worker.report.pid);
  }
  return text;
}

}  // namespace

int stacks_command(std::span<const std::string> arguments) {
  OptionParser parser(
      "acclaunch stacks [JOB] [--rank N]: prints the stacks of all threads of a running job's "
      "workers on this\nmachine, read by gdb or eu-stack, and by py-spy for Python, as far as they "
      "are installed. Each worker\nstops while its stack is read. JOB is the process ID of an "
      "acclaunch; default: all jobs of this user.",
      "acclaunch stacks");
  std::string job;
  std::optional<int> rank;
  bool brief = false;
  parser.add_option("job", job, "process ID of an acclaunch");
  parser.add_option("--rank", rank, "only this rank");
  parser.add_flag("--brief", brief, "for Python programs only the stacks of Python, by py-spy");
  if (!parser.parse(arguments)) {
    return 0;
  }
  const std::vector<RunningJob> jobs = chosen_jobs(job);
  const Readers readers = find_readers();
  if (readers.native.empty() && readers.python.empty()) {
    throw Error(Errc::not_found, "stacks: install gdb, eu-stack (elfutils) or, for Python, py-spy");
  }
  std::vector<std::future<std::string>> texts;
  for (const RunningJob& each : jobs) {
    for (const RunningWorker& worker : each.workers) {
      if (!rank || worker.report.rank == *rank) {
        texts.push_back(std::async(std::launch::async, [&each, &worker, &readers, brief] {
          return stacks_of(each, worker, readers, brief);
        }));
      }
      if (texts.size() % kAtOnce == 0 && !texts.empty()) {
        texts.back().wait();
      }
    }
  }
  for (std::future<std::string>& text : texts) {
    std::fputs(text.get().c_str(), stdout);
    std::fflush(stdout);  // whoever ends this command early gets the first ones
  }
  if (texts.empty()) {
    throw Error(Errc::not_found, fmt::format("stacks: no rank {} on this machine", *rank));
  }
  return 0;
}

}  // namespace acc::launcher::commands
