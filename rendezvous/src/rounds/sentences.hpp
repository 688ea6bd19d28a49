#pragma once

#include "rounds/agents.hpp"

#include <set>
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
/// "1,2,5": of many the first ones.
std::string list_of(const std::set<int>& ranks, std::string_view separator);
/// "1.5 s"
std::string seconds(JobTimes::Milliseconds time);

}  // namespace acc::rendezvous::rounds
