#pragma once

#include "rounds/agents.hpp"

#include <string>
#include <string_view>
#include <vector>

/// What users read about a job, in one place.
namespace acc::rendezvous::rounds {

/// "machine 2 (node3)", or "machine node3" where it has no rank.
std::string name_of(const std::optional<int>& rank, const std::string& host);
/// The same with the process of the agent, to tell two of one host apart.
std::string describe(const Machine& machine);

/// Why two machines cannot be of one job, or "".
std::string disagreement(const Machine& machine, const Terms& terms, const Machine& other,
                         const Terms& other_terms);
/// Why the machines of a round, by rank, cannot make up num_processes, or "".
std::string wrong_total(const std::vector<Agent*>& machines, const Terms& terms);

/// "2", or "2 to 4"
std::string wanted(const Terms& terms);
/// Ranks that a sentence names at most.
inline constexpr std::size_t kMaxNamed = 16;
/// "1,2,5": of more than kMaxNamed the first ones.
std::string list_of(const std::vector<int>& ranks, std::string_view separator);
/// "machine rank 1" or "machine ranks 1,2,5"
std::string machine_ranks(const std::vector<int>& ranks);
/// "1.5 s"
std::string seconds(JobTimes::Milliseconds time);

}  // namespace acc::rendezvous::rounds
