// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands/trace/trace_file.hpp"

#include <nlohmann/json.hpp>

#include <span>
#include <string>
#include <vector>

namespace acc::launcher::commands {

/// Where the time of one rank went. All times are sums over the trace in milliseconds. The parts
/// `forward` to `outside` do not overlap and add up to `total`.
struct RankTimes {
  int rank = 0;
  int steps = 0;       ///< optimizer steps in the trace
  double total = 0.0;  ///< from the first to the last event
  double forward = 0.0;
  double backward = 0.0;
  double optimizer = 0.0;
  double checkpoint = 0.0;
  double gather_wait = 0.0;  ///< exposed communication: the rank waits for parameters,
  double reduce_wait = 0.0;  ///< for reductions of gradients,
  double other_wait = 0.0;   ///< or for anything else, such as the norm of all ranks
  double outside = 0.0;      ///< the program's own time between the units: data, loss, logging
  double gather = 0.0;       ///< collectives of parameters, whether or not something waits for them
  double reduce = 0.0;       ///< collectives of gradients
  double hidden =
      0.0;  ///< part of the time with a collective in progress in which the rank computes

  [[nodiscard]] double exposed() const { return gather_wait + reduce_wait + other_wait; }
};

/// Returns the times of all ranks, by rank.
std::vector<RankTimes> summarize(std::span<const TraceFile> traces);

/// How long a phase of the launchers took (job/phases.hpp): from the shortest to the longest of all
/// machines, workers and attempts. In milliseconds.
struct PhaseTimes {
  std::string name;
  double shortest = 0.0;
  double longest = 0.0;
};

/// Returns the times of the launchers' phases, in the order of their first occurrence.
std::vector<PhaseTimes> summarize_launchers(std::span<const TraceFile> traces);

/// Returns a table of milliseconds per step, a line for each rank.
std::string summary_text(std::span<const RankTimes> ranks);
/// Returns a line for each phase; "" if there is none.
std::string summary_text(std::span<const PhaseTimes> phases);
/// Returns a list of objects with the fields of RankTimes and `exposed`, in milliseconds.
nlohmann::ordered_json summary_json(std::span<const RankTimes> ranks);

}  // namespace acc::launcher::commands
