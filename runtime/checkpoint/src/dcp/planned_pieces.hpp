// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/dcp/folder_plan.hpp"
#include "dcp/archive_sizes.hpp"

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace acc::checkpoint::dcp {

/// Computes the pieces of a folder's tensors from the plan by which it was written. Remembers where
/// tensors begin in the files of ranks that were asked for, in at most 64 MiB.
class PlannedPieces final : public PieceRule {
 public:
  /// `first_file`: number in the catalog of rank 0's file. The files of the other ranks follow it.
  PlannedPieces(FolderPlan plan, std::uint32_t first_file);

  void for_each_piece(std::size_t tensor, std::int64_t begin, std::int64_t end,
                      const VisitPiece& visit) const override;

 private:
  struct Start {
    std::size_t tensor = 0;
    std::uint64_t offset = 0;  ///< of its first chunk in a rank's file
  };
  [[nodiscard]] std::uint64_t start(int rank, std::size_t tensor) const;
  [[nodiscard]] std::vector<Start> starts_of(int rank) const;

  FolderPlan plan_;
  std::uint32_t first_file_;
  std::map<int, std::uint64_t> values_nbytes_;  ///< of the ranks that have values
  mutable std::mutex mutex_;                    // guards the members below
  mutable ArchiveSizes sizes_;
  mutable std::unordered_map<int, std::vector<Start>> starts_;
  mutable std::size_t remembered_ = 0;  ///< entries in all of `starts_`
};

}  // namespace acc::checkpoint::dcp
