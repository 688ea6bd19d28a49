// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <vector>

namespace acc::rendezvous::rounds {

/// A set of machine ranks, stored as intervals of consecutive ranks. All ranks of a job are one
/// interval, so a client cannot make the server allocate memory by claiming many machines.
class RankSet {
 public:
  RankSet() = default;
  /// Contains the ranks 0 to count - 1.
  explicit RankSet(int count);

  void insert(int rank);
  void erase(int rank);
  [[nodiscard]] bool contains(int rank) const;
  /// Returns the lowest ranks, at most `count` of them.
  [[nodiscard]] std::vector<int> lowest(std::size_t count) const;
  /// Number of intervals: a measure of the memory.
  [[nodiscard]] std::size_t num_runs() const noexcept { return runs_.size(); }

  /// Encodes or decodes it (codec.hpp).
  template <typename Coder, typename Self>
  static void code(Coder& coder, Self& self) {
    coder(self.runs_);
  }

 private:
  using Runs = std::map<int, int>;  // first rank of each interval -> last rank; never adjacent
  [[nodiscard]] Runs::const_iterator run_of(int rank) const;

  Runs runs_;
};

}  // namespace acc::rendezvous::rounds
