#pragma once

#include "rounds/agents.hpp"

#include <string_view>
#include <vector>

namespace acc::rendezvous::rounds {

/// Whether host `a` comes before `b`: numbers in a name count as such, so node2 is before node10.
bool natural_less(std::string_view a, std::string_view b);

/// Who of `waiting` makes up the next round, in the order of their ranks. Machines of the last
/// round keep their places before those that wait for one; ranks then follow the machine rank that
/// the user gave, the rank in the last round, the host, the address, the arrival.
std::vector<Agent*> in_rank_order(std::vector<Agent*> waiting, std::size_t num_machines);

}  // namespace acc::rendezvous::rounds
