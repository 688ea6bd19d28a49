// SPDX-License-Identifier: Apache-2.0
#include "state_dict/snapshot_choice.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace acc::state_dict {
namespace {

/// The snapshots of one step of one attempt.
class SnapshotSet {
 public:
  SnapshotSet(std::span<const HeldSnapshot> held, std::span<const int> machines, bool any_replica)
      : held_(held), machines_(machines), any_replica_(any_replica) {}

  void add(std::size_t number) {
    const HeldSnapshot& each = held_[number];
    of_rank_[each.rank].push_back(number);
    if (each.has_all) {
      of_shard_[each.rank % each.shards].push_back(number);
    }
    ranks_ = each.ranks;
    shards_ = each.shards;
  }

  /// Ranks of the run that made them of which there is none, or no holder of their shard.
  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < ranks_; ++rank) {
      if ((!any_replica_ && !of_rank_.contains(rank)) || !of_shard_.contains(rank % shards_)) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }
  [[nodiscard]] int ranks() const noexcept { return ranks_; }

  /// True if every rank of this run holds what the rank of its number held, or of its shard.
  [[nodiscard]] bool fits(std::span<const std::uint64_t> layouts) const {
    if (any_replica_ ? std::ssize(layouts) % shards_ != 0 : std::ssize(layouts) != ranks_) {
      return false;
    }
    for (int reader = 0; reader < std::ssize(layouts); ++reader) {
      const auto& numbers = any_replica_ ? of_shard_.at(reader % shards_) : of_rank_.at(reader);
      for (const std::size_t number : numbers) {
        if (held_[number].layout != layouts[static_cast<std::size_t>(reader)]) {
          return false;
        }
      }
    }
    return true;
  }

  /// Adds what a rank of this run reads that fits.
  void add_sources(int reader, std::vector<std::size_t>& to) const {
    if (any_replica_) {
      to.push_back(nearest(reader, of_shard_.at(reader % shards_)));
    } else {
      add_sources(reader, reader, to);
    }
  }
  /// Adds what it reads of rank `rank` of that run: its snapshot, and if that lacks something, one
  /// of the same shard.
  void add_sources(int reader, int rank, std::vector<std::size_t>& to) const {
    if (!of_rank_.contains(rank)) {
      to.push_back(nearest(reader, of_shard_.at(rank % shards_)));
      return;
    }
    to.push_back(nearest(reader, of_rank_.at(rank)));
    if (!held_[to.back()].has_all) {
      to.push_back(nearest(reader, of_shard_.at(rank % shards_)));
    }
  }

 private:
  /// The one that has everything, else on the reader's machine, else of the reader's number, else
  /// the first.
  [[nodiscard]] std::size_t nearest(int reader, const std::vector<std::size_t>& numbers) const {
    const auto cost = [&](std::size_t number) {
      const HeldSnapshot& each = held_[number];
      return std::tuple(!each.has_all, machine(each.holder) != machine(reader), each.rank != reader,
                        number);
    };
    return *std::ranges::min_element(numbers, {}, cost);
  }
  [[nodiscard]] int machine(int rank) const { return machines_[static_cast<std::size_t>(rank)]; }

  std::span<const HeldSnapshot> held_;
  std::span<const int> machines_;
  bool any_replica_;
  std::map<int, std::vector<std::size_t>> of_rank_;
  std::map<int, std::vector<std::size_t>> of_shard_;  ///< those that have everything
  int ranks_ = 1;
  int shards_ = 1;
};

std::string ranks_text(const std::vector<int>& ranks) {
  return ranks.size() > 8 ? fmt::format("{} ranks", ranks.size())
                          : fmt::format("rank {}", fmt::join(ranks, ", "));
}

}  // namespace

SnapshotSearch choose_snapshots(std::span<const HeldSnapshot> held,
                                std::span<const std::uint64_t> layouts,
                                std::span<const int> machines, bool any_replica) {
  std::map<std::pair<std::int64_t, std::uint64_t>, SnapshotSet> sets;  // by step and attempt
  for (std::size_t i = 0; i < held.size(); ++i) {
    sets.try_emplace({held[i].step, held[i].history}, held, machines, any_replica)
        .first->second.add(i);
  }
  if (sets.empty()) {
    return {.choice = {}, .reason = "no whole snapshot in memory"};
  }
  std::string reason;
  for (auto each = sets.rbegin(); each != sets.rend(); ++each) {
    const SnapshotSet& set = each->second;
    if (const std::vector<int> missing = set.missing(); !missing.empty()) {
      if (reason.empty()) {
        reason = fmt::format("step {} in memory lacks {} of {}", each->first.first,
                             ranks_text(missing), set.ranks());
      }
      continue;
    }
    SnapshotChoice choice{.step = each->first.first,
                          .ranks = set.ranks(),
                          .same_layout = set.fits(layouts),
                          .sources = {},
                          .sent = {}};
    std::set<std::size_t> sent;
    for (int reader = 0; reader < std::ssize(machines); ++reader) {
      std::vector<std::size_t> sources;
      if (choice.same_layout) {
        set.add_sources(reader, sources);
      } else {
        for (int rank = 0; rank < set.ranks(); ++rank) {
          set.add_sources(reader, rank, sources);
        }
      }
      for (const std::size_t number : sources) {
        if (machines[static_cast<std::size_t>(held[number].holder)] !=
            machines[static_cast<std::size_t>(reader)]) {
          sent.insert(number);
        }
      }
      choice.sources.push_back(std::move(sources));
    }
    choice.sent.assign(sent.begin(), sent.end());
    return {.choice = std::move(choice), .reason = reason};
  }
  return {.choice = {}, .reason = reason};
}

}  // namespace acc::state_dict
