// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "state_dict/model_files.hpp"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace acc::state_dict {

/// The last two snapshots of one rank, in memory that outlives its process: a file in memory that
/// the launcher holds. They alternate between two halves, each with a checksum and a mark that is
/// written last, so that a rank that is killed while it writes one leaves the other whole. A
/// snapshot has all values of the rank's shards, and fits the same rank of a job of the same layout
/// only.
class SnapshotMemory {
 public:
  /// path: of the file, which is open in the launcher ("/proc/PID/fd/N"). Throws Error(config) with
  /// the path.
  explicit SnapshotMemory(const std::string& path);

  /// Replaces the older snapshot. what: names the run, for which alone the snapshot counts. Not
  /// collective. Throws Error(out_of_memory | config); the other snapshot stays whole then.
  void keep(std::span<const Part> parts, const SavedState& state, const std::string& what);
  /// Returns the steps of the two snapshots; nothing for one that is not whole, or of another
  /// layout, rank or run. Reads all their bytes. Not collective.
  [[nodiscard]] std::array<std::optional<std::int64_t>, 2> steps(std::span<const Part> parts,
                                                                 const std::string& what) const;
  /// Restores a snapshot. step: one of `steps`, which all ranks have. Collective: an error of one
  /// rank becomes an error of all.
  SavedState restore(std::span<const Part> parts, std::int64_t step, const std::string& what) const;

 private:
  struct Head;
  using Halves = std::array<std::optional<std::int64_t>, 2>;
  [[nodiscard]] Head head_of(int half) const;
  [[nodiscard]] bool is_whole(int half, const Head& head) const;
  [[nodiscard]] std::string meta_of(int half, const Head& head) const;
  void read(std::uint64_t offset, std::span<std::byte> to) const;
  void write(std::uint64_t offset, std::span<const std::byte> from) const;

  std::string path_;
  UniqueFd file_;
};

}  // namespace acc::state_dict
