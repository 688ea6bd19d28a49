#include "doctor/schedule.hpp"

#include <algorithm>

// Circle method: machines sit on seats around a table, and the two seats opposite each other form a
// pair. From round to round all machines except the one on seat 0 move by one seat. After (seats -
// 1) rounds every machine has met every other one. For an odd number of machines one seat is empty,
// and the machine opposite to it rests.
namespace acc::doctor {

std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int count) {
  const int seats = count + count % 2;  // if count is odd, the last seat is empty
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int round = 0; round + 1 < seats; ++round) {
    const auto at = [&](int seat) {  // seat 0 stays, the others rotate
      return seat == 0 ? 0 : 1 + (seat - 1 + round) % (seats - 1);
    };
    std::vector<std::pair<int, int>>& pairs = rounds.emplace_back();
    for (int seat = 0; seat < seats / 2; ++seat) {
      const auto [low, high] = std::minmax({at(seat), at(seats - 1 - seat)});
      if (high < count) {
        pairs.emplace_back(low, high);
      }
    }
  }
  return rounds;
}

}  // namespace acc::doctor
