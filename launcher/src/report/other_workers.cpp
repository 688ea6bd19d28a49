#include "report/other_workers.hpp"

#include "report/plain_text.hpp"
#include "report/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <ranges>

namespace acc::launcher {
namespace {

constexpr std::size_t kMaxLines = 16;  // of one kind; a job may have thousands of workers

using Workers = std::vector<const WorkerReport*>;

std::vector<int> ranks_of(const Workers& workers) {
  std::vector<int> ranks;
  for (const WorkerReport* worker : workers) {
    ranks.push_back(worker->rank);
  }
  std::ranges::sort(ranks);
  return ranks;
}

/// The first line of what is known about it; its error file says more than the kernel.
std::string why(const WorkerReport& worker) {
  const std::string& text = worker.error_message.empty() ? worker.cause : worker.error_message;
  return text.empty() ? "" : ": " + clipped(text.substr(0, text.find('\n')), 160);
}

std::string one_worker(const WorkerReport& worker) {
  return fmt::format("rank {} (pid {} on {}): {}{}\n", worker.rank, worker.pid, worker.host,
                     how_it_ended(worker.end, worker.told_to_end), why(worker));
}

void add_remaining(std::string& out, const Workers& workers) {
  if (workers.size() > kMaxLines) {
    const Workers rest(workers.begin() + kMaxLines, workers.end());
    fmt::format_to(std::back_inserter(out), "    and {} more: {}\n", rest.size(),
                   numbered("rank", ranks_of(rest)));
  }
}

void add_failures(std::string& out, Workers failures, const JobReport& report) {
  if (failures.empty()) {
    return;
  }
  std::ranges::stable_sort(failures, {}, &WorkerReport::moment);
  const auto first = report.first_failure ? report.workers[*report.first_failure].moment
                                          : failures.front()->moment;
  out += report.first_failure ? "  other failures:\n" : "  failures:\n";
  for (const WorkerReport* worker : failures | std::views::take(kMaxLines)) {
    fmt::format_to(std::back_inserter(out), "    {:>10} later, {}",
                   time_span(worker->moment - first), one_worker(*worker));
  }
  add_remaining(out, failures);
}

void add_stuck(std::string& out, const Workers& stuck) {
  if (stuck.empty()) {
    return;
  }
  out += "  still there:\n";
  for (const WorkerReport* worker : stuck | std::views::take(kMaxLines)) {
    out += "    " + one_worker(*worker);
  }
  add_remaining(out, stuck);
}

/// Machines whose workers ended in the same ways, and who ended how.
struct Fate {
  std::map<int, std::string> machines;  ///< rank, host
  std::map<std::string, std::vector<int>> ranks_by_end;
};

std::vector<Fate> fates(const Workers& workers) {
  std::map<int, Fate> machines;
  for (const WorkerReport* worker : workers) {
    Fate& machine = machines[worker->machine_rank];
    machine.machines = {{worker->machine_rank, worker->host}};
    machine.ranks_by_end[how_it_ended(worker->end, worker->told_to_end)].push_back(worker->rank);
  }
  std::vector<Fate> merged;
  for (auto& [rank, machine] : machines) {
    const auto same = std::ranges::find_if(merged, [&](const Fate& fate) {
      return std::ranges::equal(fate.ranks_by_end | std::views::keys,
                                machine.ranks_by_end | std::views::keys);
    });
    if (same == merged.end()) {
      merged.push_back(std::move(machine));
      continue;
    }
    same->machines.merge(machine.machines);
    for (const auto& [end, ranks] : machine.ranks_by_end) {
      std::ranges::copy(ranks, std::back_inserter(same->ranks_by_end[end]));
    }
  }
  return merged;
}

std::string machine_names(const std::map<int, std::string>& machines) {
  std::vector<int> ranks;
  std::ranges::copy(machines | std::views::keys, std::back_inserter(ranks));
  return numbered("machine", ranks) +
         (machines.size() == 1 ? " (" + machines.begin()->second + ")" : "");
}

void add_rest(std::string& out, const Workers& rest, bool names_machines, bool all) {
  if (rest.empty()) {
    return;
  }
  out += all ? "  the workers:\n" : "  the other workers:\n";
  for (Fate& fate : fates(rest)) {
    if (names_machines) {
      out += "    " + machine_names(fate.machines) + "\n";
    }
    for (auto& [end, ranks] : fate.ranks_by_end) {
      std::ranges::sort(ranks);
      fmt::format_to(std::back_inserter(out), "    {}{}: {}\n", names_machines ? "  " : "",
                     numbered("rank", ranks), end);
    }
  }
}

}  // namespace

std::string other_workers(const JobReport& report) {
  Workers failures;
  Workers stuck;
  Workers rest;
  for (std::size_t i = 0; i < report.workers.size(); ++i) {
    if (i != report.first_failure) {
      const WorkerReport& worker = report.workers[i];
      (!worker.end ? stuck : worker.failed() ? failures : rest).push_back(&worker);
    }
  }
  std::string out;
  add_failures(out, std::move(failures), report);
  add_stuck(out, stuck);
  add_rest(out, rest, has_several_machines(report), !report.first_failure);
  for (const std::string& machine : report.silent_machines) {
    out += "  " + machine + " did not say how its workers ended\n";
  }
  return out;
}

}  // namespace acc::launcher
