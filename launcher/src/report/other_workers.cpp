// SPDX-License-Identifier: Apache-2.0
#include "acc/base/text.hpp"
#include "report/job_report.hpp"
#include "report/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace acc::launcher::report {
namespace {

constexpr std::size_t kMaxWorkerLines = 16;  // per list: a job may have thousands of workers
constexpr std::size_t kMaxReason = 160;      // bytes: two lines of a terminal

using Workers = std::vector<const WorkerReport*>;

std::vector<int> ranks_of(const Workers& workers) {
  std::vector<int> ranks;
  for (const WorkerReport* worker : workers) {
    ranks.push_back(worker->rank);
  }
  std::ranges::sort(ranks);
  return ranks;
}

/// Returns the first line of the worker's own error message, or else of the kernel's explanation.
std::string why(const WorkerReport& worker) {
  const std::string& text = worker.message().empty() ? worker.cause : worker.message();
  return text.empty() ? "" : ": " + clipped(text.substr(0, text.find('\n')), kMaxReason);
}

std::string one_worker(const WorkerReport& worker) {
  const std::string end = how_it_ended(worker) + why(worker);
  return worker_line(worker.rank, worker.pid, worker.host, end) + "\n";
}

/// Appends a heading and one line per worker. Workers beyond kMaxWorkerLines are only listed by
/// rank.
void add_list(std::string& out, std::string_view heading, const Workers& workers,
              const std::function<std::string(const WorkerReport&)>& line) {
  if (workers.empty()) {
    return;
  }
  fmt::format_to(std::back_inserter(out), "  {}:\n", heading);
  const auto shown =
      static_cast<Workers::difference_type>(std::min(workers.size(), kMaxWorkerLines));
  for (const WorkerReport* worker : Workers(workers.begin(), workers.begin() + shown)) {
    out += "    " + line(*worker);
  }
  const Workers rest(workers.begin() + shown, workers.end());
  if (!rest.empty()) {
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
  add_list(out, report.first_failure ? "other failures" : "failures", failures,
           [first](const WorkerReport& worker) {
             const auto difference = worker.moment - first;
             return fmt::format("{:>10} {}, {}", time_span(std::chrono::abs(difference)),
                                difference.count() < 0 ? "earlier" : "later", one_worker(worker));
           });
}

/// A group of machines whose workers ended in the same set of ways.
struct Fate {
  std::map<int, std::string> machines;  ///< host name by machine rank
  std::map<std::string, std::vector<int>> ranks_by_end;
};

/// Groups the machines, sorted by the lowest machine rank of each group.
std::vector<Fate> fates(const Workers& workers) {
  const auto how = [](const WorkerReport* worker) { return how_it_ended(*worker); };
  std::map<int, std::set<std::string>> ways;  // by machine rank
  for (const WorkerReport* worker : workers) {
    ways[worker->machine_rank].insert(how(worker));
  }
  std::map<std::set<std::string>, Fate> by_ways;
  for (const WorkerReport* worker : workers) {
    Fate& fate = by_ways[ways[worker->machine_rank]];
    fate.machines[worker->machine_rank] = worker->host;
    fate.ranks_by_end[how(worker)].push_back(worker->rank);
  }
  std::vector<Fate> sorted;
  sorted.reserve(by_ways.size());
  for (auto& [_, fate] : by_ways) {
    sorted.push_back(std::move(fate));
  }
  std::ranges::sort(sorted, {}, [](const Fate& fate) { return fate.machines.begin()->first; });
  return sorted;
}

std::string machine_names(const std::map<int, std::string>& machines) {
  std::vector<int> ranks;
  ranks.reserve(machines.size());
  for (const auto& [rank, _] : machines) {
    ranks.push_back(rank);
  }
  return numbered("machine", ranks) +
         (machines.size() == 1 ? " (" + printable(machines.begin()->second) + ")" : "");
}

/// A way in which workers ended, and the ranks that ended so.
using EndOfRanks = std::pair<std::string, std::vector<int>>;

std::vector<EndOfRanks> by_rank(const std::map<std::string, std::vector<int>>& ranks_by_end) {
  std::vector<EndOfRanks> sorted(ranks_by_end.begin(), ranks_by_end.end());
  for (auto& [_, ranks] : sorted) {
    std::ranges::sort(ranks);
  }
  std::ranges::sort(sorted, {}, [](const EndOfRanks& end) { return end.second.front(); });
  return sorted;
}

/// Appends how the remaining workers ended, one line per way. `names_machines`: groups by machines.
/// `all`: there was no failure, so that these are all workers.
void add_rest(std::string& out, const Workers& rest, bool names_machines, bool all) {
  if (rest.empty()) {
    return;
  }
  out += all ? "  the workers:\n" : "  the other workers:\n";
  for (const Fate& fate : fates(rest)) {
    if (names_machines) {
      out += "    " + machine_names(fate.machines) + "\n";
    }
    for (const auto& [end, ranks] : by_rank(fate.ranks_by_end)) {
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
      // Every worker is in exactly one of the three lists.
      (!worker.end ? stuck : worker.failed() ? failures : rest).push_back(&worker);
    }
  }
  std::string out;
  add_failures(out, std::move(failures), report);
  add_list(out, "still there", stuck, one_worker);
  add_rest(out, rest, report.has_several_machines(), !report.first_failure);
  for (const std::string& machine : report.silent_machines) {
    out += "  " + printable(machine) + " did not report how its workers ended\n";
  }
  return out;
}

}  // namespace acc::launcher::report
