#include "report/job_report.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

namespace acc::launcher {
namespace {

constexpr std::size_t kWidth = 72;

void field(std::string& out, std::string_view name, std::string_view value) {
  fmt::format_to(std::back_inserter(out), "  {:<9} {}\n", name, value);
}

void indented(std::string& out, std::string_view text) {
  for (std::size_t end = 0; !text.empty(); text.remove_prefix(std::min(end + 1, text.size()))) {
    end = std::min(text.find('\n'), text.size());
    fmt::format_to(std::back_inserter(out), "    | {}\n", text.substr(0, end));
  }
}

std::string time_of_day(std::chrono::system_clock::time_point when) {
  const auto seconds = std::chrono::floor<std::chrono::seconds>(when);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(when - seconds);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}.{:03}",
                     fmt::localtime(seconds.time_since_epoch().count()), millis.count());
}

std::string how_it_ended(const std::optional<ProcessEnd>& end, bool told_to_end) {
  if (!end) {
    return "could not be killed and is still there";
  }
  return (told_to_end ? "ended by acclaunch, " : "") + end->describe();
}

void add_worker(std::string& out, const WorkerReport& worker, const JobReport& report) {
  field(out, "rank", fmt::format("{} (local rank {})", worker.rank, worker.local_rank));
  if (report.max_restarts > 0) {
    field(out, "attempt", fmt::format("{}, of 0 to {}", report.attempt, report.max_restarts));
  }
  field(out, "host", worker.host);
  field(out, "pid", std::to_string(worker.pid));
  field(out, "time",
        fmt::format("{}, {:.3f} s after the start", time_of_day(worker.ended_at),
                    static_cast<double>(worker.ran_for.count()) / 1000.0));
  if (!worker.cause.empty()) {
    field(out, "cause", worker.cause);
  }
  if (!worker.error_message.empty()) {
    out += "  its error file says:\n";
    indented(out, worker.error_message);
  }
  if (!worker.last_stderr_lines.empty()) {
    out += "  its last lines on stderr:\n";
    for (const std::string& line : worker.last_stderr_lines) {
      indented(out, line.empty() ? "\n" : line);
    }
  }
}

/// A line for each way to end, with all ranks that ended so.
void add_others(std::string& out, const JobReport& report) {
  std::map<std::string, std::vector<int>> ranks_by_end;
  for (std::size_t i = 0; i < report.workers.size(); ++i) {
    if (i != report.first_failure) {
      const WorkerReport& other = report.workers[i];
      ranks_by_end[how_it_ended(other.end, other.told_to_end)].push_back(other.rank);
    }
  }
  if (!ranks_by_end.empty()) {
    out += "  the other workers:\n";
  }
  for (const auto& [end, ranks] : ranks_by_end) {
    fmt::format_to(std::back_inserter(out), "    {} {}: {}\n", ranks.size() == 1 ? "rank" : "ranks",
                   fmt::join(ranks, ", "), end);
  }
}

}  // namespace

std::string failure_line(const WorkerRecord& worker, const std::string& host) {
  return fmt::format("rank {} (pid {} on {}): {}", worker.rank, worker.pid, host,
                     how_it_ended(worker.end, worker.told_to_end));
}

std::string format_report(const JobReport& report) {
  const std::string rule(kWidth, '=');
  std::string what = report.reason;
  if (report.first_failure) {
    const WorkerReport& worker = report.workers[*report.first_failure];
    what = fmt::format("rank {}: {}", worker.rank, how_it_ended(worker.end, worker.told_to_end));
  }
  std::string out = rule + "\n";
  fmt::format_to(std::back_inserter(out), "acclaunch: {} failed: {}\n",
                 report.restarts_after ? fmt::format("attempt {}", report.attempt) : "the job",
                 what);
  field(out, "command", fmt::format("{}", fmt::join(report.command, " ")));
  if (report.first_failure) {
    add_worker(out, report.workers[*report.first_failure], report);
  }
  add_others(out, report);
  return out + rule + "\n";
}

}  // namespace acc::launcher
