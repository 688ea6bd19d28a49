#pragma once

#include <utility>
#include <vector>

namespace acc::doctor {

/// Schedule of pairs (a < b) of `count` machines by the circle method: every pair occurs once, and
/// no machine is in two pairs of a round. Has `count` - 1 rounds; if `count` is odd, `count`
/// rounds, in each of which one machine rests.
std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int count);

}  // namespace acc::doctor
