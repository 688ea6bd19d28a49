// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/rank_status.hpp"
#include "report/machine_report.hpp"

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::report {

/// Ranks that did not enter a collective in which their peers waited, or that entered a different
/// one.
struct LateRanks {
  std::vector<int> ranks;               ///< the late ranks, ascending
  flight::Group group;                  ///< the process group of the collective
  flight::Collective what;              ///< the collective in which the peers waited
  std::vector<int> waiting;             ///< the waiting ranks, ascending
  std::chrono::milliseconds waited{0};  ///< longest waiting time of these ranks
  /// The different collective that the late ranks entered, "all_reduce of 256 bytes"; empty if they
  /// entered none.
  std::string called = {};
  /// The ranks of the group of which nothing is known: they left no record, or run where none was
  /// read. Equal to `ranks` if no other rank can be late.
  std::vector<int> unknown = {};
};

/// Compares the flight records of all workers and returns the late ranks. Empty if no rank waited.
/// A rank that waits itself, in this group or in another, is not late. If the worker
/// `first_failure` failed outside of a collective, only entries that include it are returned, since
/// all other waiting is a consequence of that failure.
std::vector<LateRanks> late_ranks(const std::vector<WorkerReport>& workers,
                                  std::optional<std::size_t> first_failure);

/// Returns the ranks whose collective differs in kind or size from the one that most ranks of their
/// group called under the same number, ascending. A tie is decided by other groups of the same
/// name. Empty if all ranks made the same calls.
std::vector<int> differing_ranks(const std::vector<WorkerReport>& workers);

/// Returns a name for messages: "reduce_scatter 41 of unit transformer.h.3, backward".
std::string name_of(const flight::Collective& collective, const flight::Group& group);

/// Sets the collective of a rank that is watched, and the time for which it has been waiting in it
/// if it runs.
void add_collective(const flight::Record& record, std::chrono::system_clock::time_point now,
                    rendezvous::RankStatus& status);

/// Adds the last lines of its stderr, as far as they fit. Of a longer line, the end stays.
void add_stderr_lines(const std::vector<std::string>& lines, rendezvous::RankStatus& status);

/// Returns the collective in which a rank waits and for how long: "all_gather 7 of unit root,
/// forward, for 3.2 s". Empty if it waits in none.
std::string wait_of(const flight::Record& record, std::chrono::system_clock::time_point now);

/// Returns the lines of the text report about collectives: the late ranks, and the last collective
/// of each rank. Ranks with the same last collective share a line. Empty if there are no records.
std::string last_collectives(const std::vector<WorkerReport>& workers,
                             const std::vector<LateRanks>& late);

}  // namespace acc::launcher::report
