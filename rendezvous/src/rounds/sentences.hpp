// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/agents.hpp"

#include <string>
#include <string_view>
#include <vector>

/// Parts of the messages that users read about a job.
namespace acc::rendezvous::rounds {

/// Returns "machine 2 (node3)", or "machine node3" for a machine without a rank.
std::string name_of(const std::optional<int>& rank, const std::string& host);
/// Same with the agent's process id, to distinguish two agents on one host.
std::string describe(const Machine& machine);

/// Compares the terms of two machines. Returns a sentence about the first difference, or "".
std::string disagreement(const Machine& machine, const Terms& terms, const Machine& other,
                         const Terms& other_terms);
/// Compares the sum of the local world sizes with num_processes. Returns a sentence with the count
/// of each machine if they differ, or "". `machines` are in order of rank.
std::string wrong_total(const std::vector<Agent*>& machines, const Terms& terms);

/// Number of machines for a round: "2", or "2 to 4".
std::string wanted(const Terms& terms);
/// Maximum number of ranks that a message lists.
inline constexpr std::size_t kMaxNamed = 16;
/// Lists ranks: "1,2,5". Of more than kMaxNamed, the first ones and "...".
std::string list_of(const std::vector<int>& ranks, std::string_view separator);
/// Returns "machine rank 1" or "machine ranks 1,2,5".
std::string machine_ranks(const std::vector<int>& ranks);
/// Formats a duration: "1.5 s".
std::string seconds(JobTimes::Milliseconds time);

}  // namespace acc::rendezvous::rounds
