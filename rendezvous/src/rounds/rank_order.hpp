// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/agents.hpp"

#include <string_view>
#include <vector>

namespace acc::rendezvous::rounds {

/// True if host name `a` sorts before `b`. Digits are compared as numbers: node2 is before node10.
bool natural_less(std::string_view a, std::string_view b);

/// Chooses the machines of the next round from `waiting` and returns them in order of their new
/// ranks. Machines of the last round are chosen before new ones, new ones in order of arrival.
/// Ranks are ordered by the machine rank that the user gave, the rank in the last round, host,
/// address and arrival, so they do not depend on who connected first.
std::vector<Agent*> in_rank_order(std::vector<Agent*> waiting, std::size_t num_machines);

}  // namespace acc::rendezvous::rounds
