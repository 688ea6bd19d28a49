// SPDX-License-Identifier: Apache-2.0
#include "rounds/rank_set.hpp"

#include <iterator>

namespace acc::rendezvous::rounds {

RankSet::RankSet(int count) {
  if (count > 0) {
    runs_.emplace(0, count - 1);
  }
}

/// Returns the interval that contains `rank`, or end().
RankSet::Runs::const_iterator RankSet::run_of(int rank) const {
  const auto next = runs_.upper_bound(rank);
  const bool is_in_run = next != runs_.begin() && std::prev(next)->second >= rank;
  return is_in_run ? std::prev(next) : runs_.end();
}

bool RankSet::contains(int rank) const {
  return run_of(rank) != runs_.end();
}

void RankSet::insert(int rank) {
  if (contains(rank)) {
    return;
  }
  // Merges with the intervals that end just before and start just after `rank`.
  int first = rank;
  int last = rank;
  if (const auto before = run_of(rank - 1); before != runs_.end()) {
    first = before->first;
    runs_.erase(before);
  }
  if (const auto behind = runs_.find(rank + 1); behind != runs_.end()) {
    last = behind->second;
    runs_.erase(behind);
  }
  runs_.emplace(first, last);
}

void RankSet::erase(int rank) {
  const auto run = run_of(rank);
  if (run == runs_.end()) {
    return;
  }
  // Splits the interval into the parts before and after `rank`, which may be empty.
  const auto [first, last] = *run;
  runs_.erase(run);
  if (first < rank) {
    runs_.emplace(first, rank - 1);
  }
  if (rank < last) {
    runs_.emplace(rank + 1, last);
  }
}

std::vector<int> RankSet::lowest(std::size_t count) const {
  std::vector<int> ranks;
  for (const auto& [first, last] : runs_) {
    for (int rank = first; rank <= last && ranks.size() < count; ++rank) {
      ranks.push_back(rank);
    }
    if (ranks.size() == count) {
      break;
    }
  }
  return ranks;
}

}  // namespace acc::rendezvous::rounds
