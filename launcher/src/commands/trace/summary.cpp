// SPDX-License-Identifier: Apache-2.0
#include "commands/trace/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

namespace acc::launcher::commands {
namespace {

using Interval = std::pair<double, double>;

/// Category of the launchers' phases.
constexpr std::string_view kLauncher = "launcher";
/// Category of the optimizer steps, which contain the other spans.
constexpr std::string_view kStep = "step";

/// Returns the same set of times as intervals that do not overlap, ascending.
std::vector<Interval> united(std::vector<Interval> intervals) {
  std::ranges::sort(intervals);
  std::vector<Interval> result;
  for (const Interval& each : intervals) {
    if (!result.empty() && each.first <= result.back().second) {
      result.back().second = std::max(result.back().second, each.second);
    } else {
      result.push_back(each);
    }
  }
  return result;
}

/// Returns the length of the times that are in both sets.
double common_length(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double length = 0.0;
  for (auto i = a.begin(), j = b.begin(); i != a.end() && j != b.end();) {
    length += std::max(0.0, std::min(i->second, j->second) - std::max(i->first, j->first));
    if (i->second < j->second) {
      ++i;
    } else {
      ++j;
    }
  }
  return length;
}

/// The spans of one rank that are compared with each other.
struct RankSpans {
  std::vector<Interval> computing;
  std::vector<Interval> communicating;
  double first = std::numeric_limits<double>::infinity();
  double last = -std::numeric_limits<double>::infinity();
};

/// Returns the part of a rank's times that a span of the compute stream belongs to.
double& part_of(RankTimes& times, const TraceFile::Span& span) {
  const std::string_view name = span.name;
  if (span.category == "wait") {
    return name.starts_with("for the gather")      ? times.gather_wait
           : name.starts_with("for the reduction") ? times.reduce_wait
                                                   : times.other_wait;
  }
  return span.category == "optimizer"    ? times.optimizer
         : span.category == "checkpoint" ? times.checkpoint
         : name.starts_with("backward")  ? times.backward
                                         : times.forward;
}

void add_span(RankTimes& times, RankSpans& spans, const TraceFile::Span& span) {
  const double duration = (span.end - span.begin) / 1000.0;
  spans.first = std::min(spans.first, span.begin);
  spans.last = std::max(spans.last, span.end);
  if (span.category == "communication") {
    spans.communicating.emplace_back(span.begin, span.end);
    (span.name.starts_with("all_gather") ? times.gather : times.reduce) += duration;
    return;
  }
  part_of(times, span) += duration;
  if (span.category != "wait") {
    spans.computing.emplace_back(span.begin, span.end);
  }
}

struct TimeColumn {
  std::string_view name;
  double RankTimes::*value;
};

constexpr std::array kColumns = {
    TimeColumn{"total", &RankTimes::total},
    TimeColumn{"forward", &RankTimes::forward},
    TimeColumn{"backward", &RankTimes::backward},
    TimeColumn{"optimizer", &RankTimes::optimizer},
    TimeColumn{"checkpoint", &RankTimes::checkpoint},
    TimeColumn{"gather wait", &RankTimes::gather_wait},
    TimeColumn{"reduce wait", &RankTimes::reduce_wait},
    TimeColumn{"other wait", &RankTimes::other_wait},
    TimeColumn{"outside", &RankTimes::outside},
    TimeColumn{"gather", &RankTimes::gather},
    TimeColumn{"reduce", &RankTimes::reduce},
    TimeColumn{"hidden", &RankTimes::hidden},
};

}  // namespace

std::vector<RankTimes> summarize(std::span<const TraceFile> traces) {
  std::map<int, RankTimes> times;
  std::map<int, RankSpans> spans;
  for (const TraceFile& trace : traces) {
    for (const TraceFile::Span& span : trace.spans()) {
      if (span.category == kStep) {
        ++times[span.rank].steps;
      } else if (span.category != kLauncher) {
        add_span(times[span.rank], spans[span.rank], span);
      }
    }
  }
  std::vector<RankTimes> result;
  for (auto& [rank, each] : times) {
    RankSpans& of_rank = spans[rank];
    each.rank = rank;
    if (of_rank.first <= of_rank.last) {
      each.total = (of_rank.last - of_rank.first) / 1000.0;
    }
    each.hidden = common_length(united(std::move(of_rank.computing)),
                                united(std::move(of_rank.communicating))) /
                  1000.0;
    each.outside = std::max(0.0, each.total - each.forward - each.backward - each.optimizer -
                                     each.checkpoint - each.exposed());
    result.push_back(each);
  }
  return result;
}

std::vector<PhaseTimes> summarize_launchers(std::span<const TraceFile> traces) {
  std::vector<PhaseTimes> phases;
  for (const TraceFile& trace : traces) {
    for (const TraceFile::Span& span : trace.spans()) {
      if (span.category == kLauncher) {
        const double length = (span.end - span.begin) / 1000.0;
        const auto found = std::ranges::find(phases, span.name, &PhaseTimes::name);
        if (found == phases.end()) {
          phases.push_back({span.name, length, length});
        } else {
          found->shortest = std::min(found->shortest, length);
          found->longest = std::max(found->longest, length);
        }
      }
    }
  }
  return phases;
}

std::string summary_text(std::span<const PhaseTimes> phases) {
  std::string text;
  for (const PhaseTimes& phase : phases) {
    text += text.empty() ? "milliseconds of the launcher's phases and of its workers'\n" : "";
    text += fmt::format("{:>11.3f}", phase.shortest);
    text += phase.shortest < phase.longest ? fmt::format(" to {:.3f}", phase.longest) : "";
    text += "  " + phase.name + "\n";
  }
  return text;
}

std::string summary_text(std::span<const RankTimes> ranks) {
  if (ranks.empty()) {
    return "";
  }
  std::string text = "milliseconds per step\nrank  steps";
  for (const TimeColumn& column : kColumns) {
    text += fmt::format("  {:>11}", column.name);
  }
  text += "  exposed\n";
  for (const RankTimes& rank : ranks) {
    const double per_step = 1.0 / std::max(1, rank.steps);
    text += fmt::format("{:>4}  {:>5}", rank.rank, rank.steps);
    for (const TimeColumn& column : kColumns) {
      text += fmt::format("  {:>11.3f}", rank.*column.value * per_step);
    }
    text +=
        fmt::format("  {:>5.1f} %\n", rank.total > 0.0 ? 100.0 * rank.exposed() / rank.total : 0.0);
  }
  return text +
         "total = forward + … + outside. The waits are exposed communication; hidden is the time "
         "in which\na rank computes while a gather or a reduction is in progress.\n";
}

nlohmann::ordered_json summary_json(std::span<const RankTimes> ranks) {
  auto list = nlohmann::ordered_json::array();
  for (const RankTimes& rank : ranks) {
    nlohmann::ordered_json object = {{"rank", rank.rank}, {"steps", rank.steps}};
    for (const TimeColumn& column : kColumns) {
      std::string key(column.name);
      std::ranges::replace(key, ' ', '_');
      object[key + "_ms"] = rank.*column.value;
    }
    object["exposed_ms"] = rank.exposed();
    list.push_back(std::move(object));
  }
  return list;
}

}  // namespace acc::launcher::commands
