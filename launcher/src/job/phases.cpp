// SPDX-License-Identifier: Apache-2.0
#include "job/phases.hpp"

#include "acc/base/json.hpp"
#include "acc/base/trace_file.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>
#include <utility>

namespace acc::launcher::job {
namespace {

// Processes of a trace are ranks; a launcher's number must not be one.
constexpr int kFirstLauncher = 1'000'000;

std::string trace_name(int process, const char* of, int thread, const std::string& name) {
  return text_of_json(nlohmann::json{{"name", of},
                                     {"ph", "M"},
                                     {"pid", process},
                                     {"tid", thread},
                                     {"args", {{"name", name}}}}) +
         ",\n";
}

}  // namespace

void Phases::add(std::string name, Clock::time_point begin, Clock::time_point end) {
  add(kOfJob, std::move(name), begin, end);
}

void Phases::add(int rank, std::string name, Clock::time_point begin, Clock::time_point end) {
  if (wanted_ && begin < end) {
    phases_.push_back({rank, std::move(name), begin, end});
  }
}

void Phases::finish(const std::string& path, int machine_rank, const std::string& host) {
  if (!phases_.empty()) {
    add("end", std::ranges::max(phases_, {}, &Phase::end).end, Clock::now());
  }
  const int process = kFirstLauncher + machine_rank;
  std::string lines = trace_name(process, "process_name", 0, "launcher on " + host) +
                      trace_clock_event(process) + trace_name(process, "thread_name", 0, "job");
  std::set<int> ranks;
  for (const Phase& phase : phases_) {
    const int thread = phase.rank + 1;
    if (phase.rank != kOfJob && ranks.insert(phase.rank).second) {
      lines += trace_name(process, "thread_name", thread, fmt::format("rank {}", phase.rank));
    }
    using Microseconds = std::chrono::duration<double, std::micro>;
    lines += fmt::format(
        "{{\"name\":{},\"cat\":\"launcher\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},"
        "\"dur\":{:.3f}}},\n",
        json_quoted(phase.name), process, thread,
        Microseconds(phase.begin.time_since_epoch()).count(),
        Microseconds(phase.end - phase.begin).count());
  }
  try {
    append_trace_events(path, std::move(lines));
  } catch (...) {
    end_trace_file(path);
    throw;
  }
  end_trace_file(path);
}

}  // namespace acc::launcher::job
