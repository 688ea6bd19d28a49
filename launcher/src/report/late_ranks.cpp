// SPDX-License-Identifier: Apache-2.0
// Each worker's flight record lists its process groups and, per group, its last collectives. The
// members of a group number their collectives alike: 1, 2, 3, … Two rules find the faulty ranks:
//
//   1. Different call: under one number, ranks called collectives of different kind or size. The
//      minority is at fault.
//   2. Missing call: ranks wait in collective n, and a rank that waits nowhere has called fewer
//      than n collectives. That rank is late.
//
// Rule 1 has precedence, since ranks also wait as a consequence of different calls.
#include "report/late_ranks.hpp"

#include "acc/base/text.hpp"
#include "report/words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace acc::launcher::report {
namespace {

using flight::Collective;
using flight::Group;
using flight::State;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kMostUnknown = 4096;  // limit of ranks without a record that are listed per group

/// One rank's view of a group.
struct Member {
  const WorkerReport* worker;
  std::size_t index;  ///< index of the group in the worker's record
  [[nodiscard]] const Group& group() const { return worker->flight->groups[index]; }
  [[nodiscard]] const Collective* find(std::uint32_t number) const {
    const auto& last = worker->flight->last;
    const auto found = std::ranges::find_if(
        last, [&](const Collective& c) { return c.group == index && c.number == number; });
    return found != last.end() ? &*found : nullptr;
  }
};
using Members = std::vector<Member>;

bool waits_somewhere(const WorkerReport& worker) {
  return worker.flight && std::ranges::any_of(worker.flight->groups, [](const Group& group) {
           return group.waiting != 0;
         });
}

bool failed_in_collective(const WorkerReport& worker) {
  return worker.flight && std::ranges::any_of(worker.flight->last, [](const Collective& each) {
           return each.state == State::failed;
         });
}

/// Returns the members of each group, sorted by rank. Two records refer to the same group if its
/// name and its ranks are equal.
std::vector<Members> members_by_group(const std::vector<WorkerReport>& workers) {
  std::map<std::tuple<std::string, int, int, int>, Members> groups;
  for (const WorkerReport& worker : workers) {
    for (std::size_t i = 0; worker.flight && i < worker.flight->groups.size(); ++i) {
      const Group& group = worker.flight->groups[i];
      groups[{group.name, group.first, group.stride, group.count}].push_back({&worker, i});
    }
  }
  std::vector<Members> all;
  for (auto& [_, members] : groups) {
    all.push_back(std::move(members));
  }
  return all;
}

std::vector<int> ranks_of(const Members& members) {
  std::set<int> ranks;
  for (const Member& member : members) {
    ranks.insert(member.worker->rank);
  }
  return {ranks.begin(), ranks.end()};
}

/// Returns how long a member waited in `what`: until the collective failed or the worker ended.
milliseconds waited_for(const Member& member, const Collective& what) {
  const microseconds end =
      what.ended_us > 0
          ? microseconds(what.ended_us)
          : std::chrono::floor<microseconds>(member.worker->ended_at.time_since_epoch());
  const microseconds begin(what.waiting_us);
  return begin.count() == 0 || end < begin ? milliseconds(0)
                                           : std::chrono::duration_cast<milliseconds>(end - begin);
}

/// Builds a result from the records of the ranks that waited in collective `number`.
LateRanks lateness(std::vector<int> late, const Members& waiting, std::uint32_t number) {
  LateRanks result{.ranks = std::move(late),
                   .group = waiting.front().group(),
                   .what = {},
                   .waiting = ranks_of(waiting)};
  result.what.number = number;
  for (const Member& member : waiting) {
    if (const Collective* what = member.find(number)) {
      result.what = *what;
      result.waited = std::max(result.waited, waited_for(member, *what));
    }
  }
  return result;
}

using Call = std::pair<std::string, std::uint64_t>;  ///< kind and bytes
/// Number of ranks that made a call, by group name, collective number and call. Groups of the same
/// name, such as the data-parallel groups of different pipeline stages, are counted together.
using CallCounts = std::map<std::tuple<std::string, std::uint32_t, Call>, int>;

CallCounts count_calls(const std::vector<WorkerReport>& workers) {
  CallCounts counts;
  for (const WorkerReport& worker : workers) {
    for (std::size_t i = 0; worker.flight && i < worker.flight->last.size(); ++i) {
      const Collective& each = worker.flight->last[i];
      ++counts[{worker.flight->groups[each.group].name, each.number, {each.kind, each.nbytes}}];
    }
  }
  return counts;
}

/// Rule 1. Returns the collective of lowest number for which the members made different calls.
std::optional<LateRanks> different_call(const Members& members, const CallCounts& counts) {
  std::map<std::uint32_t, std::map<Call, Members>> calls;
  for (const Member& member : members) {
    for (const Collective& each : member.worker->flight->last) {
      if (each.group == member.index) {
        calls[each.number][{each.kind, each.nbytes}].push_back(member);
      }
    }
  }
  for (const auto& [number, by_call] : calls) {
    if (by_call.size() < 2) {
      continue;
    }
    // The usual call is the one of most members. On a tie it is the more frequent one in all groups
    // of the same name, which run the same program; then the one of the lowest rank.
    const auto order = [&, number = number](const auto& each) {
      return std::tuple(-static_cast<int>(each.second.size()),
                        -counts.at({members.front().group().name, number, each.first}),
                        each.second.front().worker->rank);
    };
    const auto usual = std::ranges::min_element(by_call, {}, order);
    Members others;
    const Call* called = nullptr;
    for (const auto& each : by_call) {
      if (&each.second != &usual->second) {
        called = called == nullptr ? &each.first : called;
        others.insert(others.end(), each.second.begin(), each.second.end());
      }
    }
    LateRanks result = lateness(ranks_of(others), usual->second, number);
    result.called = fmt::format("{} of {} bytes", called->first, called->second);
    return result;
  }
  return std::nullopt;
}

/// Returns the ranks of the group that left no record.
std::vector<int> unknown_ranks(const Members& members) {
  const std::vector<int> known = ranks_of(members);
  const Group& group = members.front().group();
  std::vector<int> unknown;
  for (int i = 0; i < std::min(group.count, kMostUnknown); ++i) {
    const std::int64_t rank = group.first + std::int64_t{i} * group.stride;
    if (!std::ranges::binary_search(known, rank)) {
      unknown.push_back(static_cast<int>(rank));
    }
  }
  return unknown;
}

/// Rule 2. Returns the ranks that have not entered the collective in which their peers wait, or, if
/// there are none, those that entered it but do not wait in it. If all known members wait, the
/// ranks without a record are late.
std::optional<LateRanks> missing_call(const Members& members) {
  std::map<std::uint32_t, Members> waiting;
  for (const Member& member : members) {
    if (member.group().waiting != 0) {
      waiting[member.group().waiting].push_back(member);
    }
  }
  for (const auto& [number, waiters] : waiting) {
    Members not_called;
    Members elsewhere;
    for (const Member& member : members) {
      const Collective* own = member.find(number);
      if (waits_somewhere(*member.worker) || (own != nullptr && own->state == State::done)) {
        continue;
      }
      (member.group().called < number ? not_called : elsewhere).push_back(member);
    }
    std::vector<int> late = ranks_of(not_called.empty() ? elsewhere : not_called);
    std::vector<int> unknown = unknown_ranks(members);
    if (late.empty() && waiters.size() == members.size()) {
      late = unknown;
    }
    if (!late.empty()) {
      LateRanks result = lateness(std::move(late), waiters, number);
      result.unknown = std::move(unknown);
      return result;
    }
  }
  return std::nullopt;
}

}  // namespace

std::vector<LateRanks> late_ranks(const std::vector<WorkerReport>& workers,
                                  std::optional<std::size_t> first_failure) {
  std::vector<LateRanks> different;
  std::vector<LateRanks> late;
  const CallCounts counts = count_calls(workers);
  for (const Members& members : members_by_group(workers)) {
    if (auto found = different_call(members, counts)) {
      different.push_back(std::move(*found));
    }
    if (auto found = missing_call(members)) {
      late.push_back(std::move(*found));
    }
  }
  if (!different.empty()) {
    return different;  // rule 1
  }
  if (first_failure && !failed_in_collective(workers[*first_failure])) {
    std::erase_if(late, [&](const LateRanks& each) {
      return !std::ranges::binary_search(each.ranks, workers[*first_failure].rank);
    });
  }
  // Sorts by the number of waiting ranks, and reports each set of late ranks once.
  std::ranges::stable_sort(late, {}, [](const LateRanks& each) {
    return -static_cast<std::ptrdiff_t>(each.waiting.size());
  });
  std::set<std::vector<int>> seen;
  std::erase_if(late, [&](const LateRanks& each) { return !seen.insert(each.ranks).second; });
  return late;
}

std::vector<int> differing_ranks(const std::vector<WorkerReport>& workers) {
  std::set<int> ranks;
  const CallCounts counts = count_calls(workers);
  for (const Members& members : members_by_group(workers)) {
    if (const auto found = different_call(members, counts)) {
      ranks.insert(found->ranks.begin(), found->ranks.end());
    }
  }
  return {ranks.begin(), ranks.end()};
}

std::string name_of(const Collective& collective, const Group& group) {
  std::string name = fmt::format("{} {}", collective.kind, collective.number);
  if (group.name != "world") {
    name += " of the " + group.name + " group";
  }
  if (!collective.place.unit.empty()) {
    name += " of unit " + collective.place.unit;
  }
  return name + (collective.place.phase.empty() ? "" : ", " + collective.place.phase);
}

namespace {

constexpr std::size_t kMaxLateLines = 8;

std::string late_line(const LateRanks& late) {
  const std::string what = name_of(late.what, late.group);
  const std::string others = numbered("rank", late.waiting);
  const std::string who = numbered("rank", late.ranks);
  if (!late.called.empty()) {
    return fmt::format("  differs   {} called {}; {} called {} ({} bytes)\n", who, late.called,
                       others, what, late.what.nbytes);
  }
  const std::string time =
      late.waited.count() > 0 ? " for " + time_span(microseconds(late.waited)) : "";
  const std::string unknown =
      late.unknown.empty() ? "" : "no record of " + numbered("rank", late.unknown);
  if (late.ranks == late.unknown) {
    return fmt::format("  late      {}; {} waited in {}{}\n", unknown, others, what, time);
  }
  return fmt::format("  late      {} did not enter {}, in which {} waited{}{}{}\n", who, what,
                     others, time, unknown.empty() ? "" : "; ", unknown);
}

/// Returns the collective in which the rank waits or failed, or else its last one; null if none.
const Collective* significant(const flight::Record& record) {
  const auto stopped =
      std::ranges::find_if(record.last.rbegin(), record.last.rend(), [](const Collective& each) {
        return each.state == State::waiting || each.state == State::failed;
      });
  return stopped != record.last.rend() ? &*stopped
         : record.last.empty()         ? nullptr
                                       : &record.last.back();
}

/// Returns the collective in which the rank waits; null if none.
const Collective* waits_in(const flight::Record& record) {
  const auto found = std::ranges::find(record.last, State::waiting, &Collective::state);
  return found == record.last.end() ? nullptr : &*found;
}

microseconds since(std::int64_t us, std::chrono::system_clock::time_point now) {
  const auto passed = std::chrono::floor<microseconds>(now.time_since_epoch()) - microseconds(us);
  return std::max(passed, microseconds(0));
}

std::string where(const flight::Record& record) {
  const Collective* const last = significant(record);
  if (last == nullptr) {
    return "none yet";
  }
  std::string text =
      fmt::format("{}, {}", name_of(*last, record.groups[last->group]), to_string(last->state));
  const bool moved_on = last->state == State::done || last->state == State::called;
  if (moved_on && !record.place.phase.empty() && record.place != last->place) {
    text += "; then in " + record.place.phase +
            (record.place.unit.empty() ? "" : " of unit " + record.place.unit);
  }
  return text;
}

}  // namespace

void add_stderr_lines(const std::vector<std::string>& lines, rendezvous::RankStatus& status) {
  std::size_t left = rendezvous::RankStatus::kMaxLines;
  for (auto line = lines.rbegin(); line != lines.rend() && left > 1; ++line) {
    std::string text = printable(*line);
    if (text.size() >= left && !status.last_stderr_lines.empty()) {
      return;
    }
    text.erase(0, text.size() - std::min(text.size(), left - 1));
    left -= text.size() + 1;
    status.last_stderr_lines.insert(status.last_stderr_lines.begin(), std::move(text));
  }
}

std::string wait_of(const flight::Record& record, std::chrono::system_clock::time_point now) {
  const Collective* const found = waits_in(record);
  return found == nullptr ? ""
                          : fmt::format("{}, for {}", name_of(*found, record.groups[found->group]),
                                        time_span(since(found->waiting_us, now)));
}

void add_collective(const flight::Record& record, std::chrono::system_clock::time_point now,
                    rendezvous::RankStatus& status) {
  status.collective = where(record).substr(0, rendezvous::RankStatus::kMaxCollective);
  if (const Collective* const found = waits_in(record);
      found != nullptr && status.state == rendezvous::RankStatus::State::running) {
    status.waiting_for = std::min(std::chrono::floor<milliseconds>(since(found->waiting_us, now)),
                                  milliseconds(rendezvous::RankStatus::kMaxAge));
  }
}

std::string last_collectives(const std::vector<WorkerReport>& workers,
                             const std::vector<LateRanks>& late) {
  std::map<std::string, std::vector<int>> ranks_by_place;
  for (const WorkerReport& worker : workers) {
    if (worker.flight && !worker.flight->groups.empty()) {
      ranks_by_place[where(*worker.flight)].push_back(worker.rank);
    }
  }
  std::string out;
  for (std::size_t i = 0; i < std::min(late.size(), kMaxLateLines); ++i) {
    out += late_line(late[i]);
  }
  if (ranks_by_place.empty()) {
    return out;
  }
  using Line = std::pair<std::string, std::vector<int>>;
  std::vector<Line> lines(ranks_by_place.begin(), ranks_by_place.end());
  const auto is_late = [&](int rank) {
    return std::ranges::any_of(
        late, [&](const LateRanks& each) { return std::ranges::binary_search(each.ranks, rank); });
  };
  std::ranges::sort(lines, {}, [&](const Line& line) {
    return std::pair(!is_late(line.second.front()), line.second.front());
  });
  out += "  last collectives:\n";
  for (std::size_t i = 0; i < std::min(lines.size(), kMaxLateLines); ++i) {
    out += "    " + numbered("rank", lines[i].second) + ": " + lines[i].first + "\n";
  }
  if (lines.size() > kMaxLateLines) {
    out += fmt::format("    and {} more places\n", lines.size() - kMaxLateLines);
  }
  return out;
}

}  // namespace acc::launcher::report
