// SPDX-License-Identifier: Apache-2.0
#include "acc/base/text.hpp"
#include "report/job_report.hpp"
#include "report/late_ranks.hpp"
#include "report/words.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>

namespace acc::launcher::report {
namespace {

constexpr std::size_t kWidth = 72;
constexpr std::size_t kMaxCommand = 1000;

/// Appends "  name      value". Further lines of the value are indented to the same column, so that
/// no text of a worker can be mistaken for another field.
void field(std::string& out, std::string_view name, std::string_view value) {
  if (value.empty()) {
    return;
  }
  for (std::size_t end = 0; !value.empty(); value.remove_prefix(std::min(end + 1, value.size()))) {
    end = std::min(value.find('\n'), value.size());
    fmt::format_to(std::back_inserter(out), "  {:<9} {}\n", name, value.substr(0, end));
    name = "";
  }
}

void quoted_lines(std::string& out, std::string_view heading,
                  const std::vector<std::string>& lines) {
  if (lines.empty()) {
    return;
  }
  fmt::format_to(std::back_inserter(out), "  {}:\n", heading);
  for (std::string line : lines) {
    std::ranges::replace(line, '\n', ' ');
    out += line.empty() ? "    |\n" : "    | " + line + "\n";
  }
}

std::string time_of_day(std::chrono::system_clock::time_point when) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(when);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(when - seconds);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03}",
                     fmt::localtime(seconds.time_since_epoch().count()), millis.count());
}

/// True if the traceback is already in the last lines of stderr, where Python prints it too; then
/// it is not shown twice.
bool is_on_stderr(const WorkerReport& worker) {
  return !worker.traceback.empty() &&
         std::ranges::count(worker.last_stderr_lines, worker.traceback.back()) > 0;
}

void add_worker(std::string& out, const WorkerReport& worker, const JobReport& report) {
  field(out, "rank", fmt::format("{} (local rank {})", worker.rank, worker.local_rank));
  field(out, "host",
        report.has_several_machines()
            ? fmt::format("{} (machine {})", worker.host, worker.machine_rank)
            : worker.host);
  field(out, "pid", std::to_string(worker.pid));
  field(out, "time",
        fmt::format("{}, {} after the start", time_of_day(worker.ended_at),
                    time_span(worker.ran_for)));
  if (report.max_restarts > 0) {
    field(out, "attempt", fmt::format("{}, of 0 to {}", report.attempt, report.max_restarts));
  }
  field(out, "cause", worker.cause);
  field(out, "error", worker.message());
  if (!is_on_stderr(worker)) {
    quoted_lines(out, "traceback, from its error file", worker.traceback);
  }
  quoted_lines(out, "its last lines on stderr", worker.last_stderr_lines);
}

std::string what_follows(const JobReport& report) {
  if (!report.restarts_after) {
    return fmt::format("the job ends with exit status {}", report.exit_status);
  }
  const auto delay = *report.restarts_after;
  return fmt::format("restart {} of {}", report.attempt + 1, report.max_restarts) +
         (delay.count() > 0 ? " in " + time_span(delay) : "");
}

}  // namespace

std::vector<std::string> read_stacks(const std::string& path) {
  constexpr std::size_t kMostLines = 200;
  constexpr std::size_t kLongestLine = 300;
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; lines.size() < kMostLines && std::getline(file, line);) {
    if (lines.empty() && !line.starts_with("== ")) {
      return {};  // no debugger is installed
    }
    lines.push_back(clipped(line, kLongestLine));
  }
  if (file.good() && file.peek() != std::ifstream::traits_type::eof()) {
    lines.push_back("... the other lines are in " + path);
  }
  return lines;
}

std::string format_report(const JobReport& report) {
  const std::string rule(kWidth, '=');
  std::string what = report.reason;
  if (report.first_failure) {
    const WorkerReport& worker = report.workers[*report.first_failure];
    what = fmt::format("rank {}: {}", worker.rank, how_it_failed(worker));
  }
  std::string out =
      fmt::format("{}\nacclaunch: {} failed: {}\n", rule,
                  report.restarts_after ? fmt::format("attempt {}", report.attempt) : "the job",
                  printable(what));
  field(out, "command", clipped(shell_line(report.command), kMaxCommand));
  if (report.first_failure) {
    add_worker(out, bounded(report.workers[*report.first_failure]), report);
  }
  out += last_collectives(report.workers, late_ranks(report.workers, report.first_failure));
  out += other_workers(report);
  quoted_lines(out, "stacks of the workers on this machine", report.stacks);
  field(out, "then", what_follows(report));
  field(out, "logs", report.log_folder);
  field(out, "report", report.report_file);
  return printable_lines(out + rule + "\n");
}

}  // namespace acc::launcher::report
