#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/dcp/archive_sizes.hpp"
#include "checkpoint/dcp/folder_plan.hpp"

#include <cstdint>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace acc::checkpoint::dcp {

/// Pieces of a folder's tensors by the plan that it was written by. Remembers where tensors begin
/// in the files of ranks that it met, in at most 64 MiB.
class PlannedPieces final : public PieceRule {
 public:
  /// `first_file`: the number of rank 0's file in the catalog; the others' follow.
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
  std::map<int, std::uint64_t> values_nbytes_;  ///< of the ranks that have some
  mutable std::mutex mutex_;                    // of what follows
  mutable ArchiveSizes sizes_;
  mutable std::unordered_map<int, std::vector<Start>> starts_;
  mutable std::size_t remembered_ = 0;  ///< in `starts_`
};

}  // namespace acc::checkpoint::dcp
