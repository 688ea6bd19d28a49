#pragma once

#include <cstddef>
#include <map>
#include <vector>

namespace acc::rendezvous::rounds {

/// A set of machine ranks. Its memory grows with the number of runs of neighbours: all ranks of a
/// job are one run, however many machines the job says it has.
class RankSet {
 public:
  RankSet() = default;
  /// The ranks 0 to count - 1.
  explicit RankSet(int count);

  void insert(int rank);
  void erase(int rank);
  [[nodiscard]] bool contains(int rank) const;
  /// The lowest ranks, at most `count` of them.
  [[nodiscard]] std::vector<int> lowest(std::size_t count) const;
  [[nodiscard]] std::size_t num_runs() const noexcept { return runs_.size(); }

 private:
  using Runs = std::map<int, int>;  // the first rank of each run, and its last
  [[nodiscard]] Runs::const_iterator run_of(int rank) const;

  Runs runs_;
};

}  // namespace acc::rendezvous::rounds
