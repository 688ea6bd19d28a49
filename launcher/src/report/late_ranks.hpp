#pragma once

#include "report/machine_report.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// Ranks that kept others waiting in a collective, or called another one there.
struct LateRanks {
  std::vector<int> ranks;               ///< rising
  flight::Group group;                  ///< whose collective it is
  flight::Collective what;              ///< that the others were in
  std::vector<int> waiting;             ///< those, rising
  std::chrono::milliseconds waited{0};  ///< the longest of them
  /// What the late ranks called in its place: "all_reduce of 256 bytes"; empty: they did not come.
  std::string called = {};
};

/// What the flight records of all workers say together; empty where nobody waits for anybody. Who
/// waits itself, in this group or another, is not late. A worker that failed first, and not in a
/// collective, is the only one that others can have been waiting for.
std::vector<LateRanks> late_ranks(const std::vector<WorkerReport>& workers,
                                  std::optional<std::size_t> first_failure);

/// Ranks that called another collective than most of their group did under the same number, or than
/// most ranks of other groups of that name did; rising. Empty where all called alike.
std::vector<int> differing_ranks(const std::vector<WorkerReport>& workers);

/// "reduce_scatter 41 of unit transformer.h.3, backward".
std::string name_of(const flight::Collective& collective, const flight::Group& group);

/// The lines of the report for people: who was late, and where each rank was, those of one place
/// together. Empty where there are no records.
std::string last_collectives(const std::vector<WorkerReport>& workers,
                             const std::vector<LateRanks>& late);

}  // namespace acc::launcher
