#pragma once

#include <utility>
#include <vector>

namespace acc::doctor {

/// Rounds of pairs (a < b) of `count` machines in which everybody meets everybody once, and no
/// machine is in two pairs of a round: the circle method. `count` - 1 rounds, `count` where that is
/// odd, in each of which one machine rests.
std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int count);

}  // namespace acc::doctor
