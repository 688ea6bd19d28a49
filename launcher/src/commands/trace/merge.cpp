// SPDX-License-Identifier: Apache-2.0
#include "acc/base/json.hpp"
#include "commands/trace/trace_file.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace acc::launcher::commands {
namespace {

/// Shortest wait, in microseconds, that tells when a collective ended: a rank that waits for less
/// came after the end.
constexpr double kRealWait = 50.0;
constexpr std::size_t kFewestWaits = 3;
/// Category of the arrows.
constexpr const char* kArrows = "collective";

/// Ends of the real waits of a machine, by the name of the wait and its number within a rank. All
/// ranks wait for the same collectives in the same order.
using WaitEnds = std::map<std::pair<std::string, int>, double>;

WaitEnds wait_ends(const TraceFile& trace) {
  WaitEnds ends;
  std::map<std::pair<int, std::string>, int> counts;
  std::vector<TraceFile::Span> spans = trace.spans();
  std::ranges::stable_sort(spans, {}, &TraceFile::Span::begin);
  for (const TraceFile::Span& span : spans) {
    if (span.category != "wait") {
      continue;
    }
    const int number = counts[{span.rank, span.name}]++;
    if (span.end - span.begin >= kRealWait) {
      ends.try_emplace({span.name, number}, span.end);
    }
  }
  return ends;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// A collective on one rank.
struct Entered {
  const nlohmann::json* pid;
  const nlohmann::json* tid;
  double begin;
  double end;
};

/// Returns arrows, as pairs of events: from the rank that entered a collective last to the ranks
/// that were in it then and waited for that rank. Perfetto calls an arrow a flow.
std::string arrows(std::span<const TraceFile> traces, std::span<const ClockShift> shifts) {
  std::map<std::string, std::vector<Entered>> collectives;
  for (std::size_t i = 0; i < traces.size(); ++i) {
    for (const nlohmann::json& event : traces[i].events) {
      const auto args = event.find("args");
      if (event.at("ph") == "X" && event.contains("tid") && args != event.end() &&
          args->is_object() && args->contains("collective")) {
        const double begin = event.at("ts").get<double>() + shifts[i].microseconds;
        collectives[text_of_json(args->at("collective"))].push_back(
            {&event.at("pid"), &event.at("tid"), begin, begin + event.at("dur").get<double>()});
      }
    }
  }
  std::string text;
  std::size_t number = 0;
  for (const auto& [id, entered] : collectives) {
    const auto last = std::ranges::max_element(entered, {}, &Entered::begin);
    for (auto each = entered.begin(); each != entered.end(); ++each) {
      if (each == last || each->end < last->begin) {
        continue;  // has left before: its clock differs
      }
      ++number;
      for (const auto& [phase, at] : {std::pair("s", last), std::pair("f", each)}) {
        const nlohmann::json event = {{"name", "last to enter"},
                                      {"cat", kArrows},
                                      {"ph", phase},
                                      {"bp", "e"},
                                      {"id", number},
                                      {"pid", *at->pid},
                                      {"tid", *at->tid},
                                      {"ts", last->begin}};
        text += ",\n" + text_of_json(event);
      }
    }
  }
  return text;
}

}  // namespace

std::vector<ClockShift> align(std::span<const TraceFile> traces) {
  std::vector<ClockShift> shifts(traces.size());
  if (traces.empty()) {
    return shifts;
  }
  const TraceFile& first = traces.front();
  const WaitEnds first_ends = wait_ends(first);
  shifts.front().has_clock = first.to_unix.has_value();
  for (std::size_t i = 1; i < traces.size(); ++i) {
    ClockShift& shift = shifts[i];
    shift.has_clock = first.to_unix && traces[i].to_unix;
    if (shift.has_clock) {
      shift.microseconds = *traces[i].to_unix - *first.to_unix;
    }
    std::vector<double> differences;
    for (const auto& [wait, end] : wait_ends(traces[i])) {
      if (const auto found = first_ends.find(wait); found != first_ends.end()) {
        differences.push_back(found->second - end);
      }
    }
    if (differences.size() >= kFewestWaits) {
      shift.waits = static_cast<int>(differences.size());
      shift.microseconds = median(std::move(differences));
    }
  }
  return shifts;
}

std::string merged(std::span<const TraceFile> traces, std::span<const ClockShift> shifts) {
  std::string text = "[\n";
  for (std::size_t i = 0; i < traces.size(); ++i) {
    for (nlohmann::json event : traces[i].events) {
      if (event.value("cat", "") == kArrows) {
        continue;  // of an earlier merge
      }
      if (const auto ts = event.find("ts"); ts != event.end() && ts->is_number()) {
        *ts = ts->get<double>() + shifts[i].microseconds;
      }
      text += (text.size() > 2 ? ",\n" : "") + text_of_json(event);
    }
  }
  return text + arrows(traces, shifts) + "\n]\n";
}

}  // namespace acc::launcher::commands
