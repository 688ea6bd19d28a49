// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// The choice of snapshots in memory that a run resumes from. Pure: every rank decides alike.
namespace acc::state_dict {

/// A whole snapshot in the memory of a machine. Made by rank `rank` of `ranks`, of which rank r
/// holds shard r % shards.
struct HeldSnapshot {
  std::uint64_t history = 0;  ///< of the attempt that made it; later ones have larger ones
  std::int64_t step = 0;
  int rank = 0;
  int ranks = 1;
  int shards = 1;
  bool has_all = true;       ///< false: without what the other holders of the shard have
  std::uint64_t layout = 0;  ///< of what the rank held
  int holder = 0;            ///< rank of this run that reads it
  int file = 0;              ///< number of the file in that rank's machine
  int place = 0;
};

/// Snapshots of one step that together hold everything.
struct SnapshotChoice {
  std::int64_t step = 0;
  int ranks = 1;             ///< of the run that made them
  bool same_layout = false;  ///< each rank of this run holds what the rank of its number held
  /// For each rank of this run, what it reads, as numbers of `held`: of several sources for the
  /// same values the first one counts.
  std::vector<std::vector<std::size_t>> sources;
  /// Those that a rank of another machine reads, ascending.
  std::vector<std::size_t> sent;
};

struct SnapshotSearch {
  std::optional<SnapshotChoice> choice;
  std::string reason;  ///< if there is none, for a message
};

/// The newest step of which all is there; of several attempts that made it, the last one: a machine
/// that was away may have made a step that the others have made again without it.
/// held: of all machines. layouts: of this run, by rank. machines: machine of each rank of this
/// run. any_replica: a whole snapshot of each shard is enough, whatever ranks are lost; each rank
/// reads one of its shard, if the shards are the same. Values that a rank saved for itself are lost
/// with it.
SnapshotSearch choose_snapshots(std::span<const HeldSnapshot> held,
                                std::span<const std::uint64_t> layouts,
                                std::span<const int> machines, bool any_replica = false);

}  // namespace acc::state_dict
