// SPDX-License-Identifier: Apache-2.0
#include "dcp/planned_pieces.hpp"

#include "acc/base/error.hpp"

#include <algorithm>
#include <utility>

namespace acc::checkpoint::dcp {

PlannedPieces::PlannedPieces(FolderPlan plan, std::uint32_t first_file)
    : plan_(std::move(plan)), first_file_(first_file), values_nbytes_(values_nbytes(plan_)) {}

// Computes where each tensor of a rank begins in its file. This walks all chunks of the rank once;
// a reader that needs a few ranks does it for those only.
std::vector<PlannedPieces::Start> PlannedPieces::starts_of(int rank) const {
  const auto values = values_nbytes_.find(rank);
  std::uint64_t offset = values == values_nbytes_.end() ? 0 : values->second;
  std::vector<Start> starts;
  for (const PlannedChunk& chunk : plan_.rule->chunks(rank)) {
    if (starts.empty() || starts.back().tensor != chunk.tensor) {
      starts.push_back({chunk.tensor, offset});
    }
    offset += sizes_(plan_.tensors[chunk.tensor].dtype, chunk.box.sizes);
  }
  starts.shrink_to_fit();
  return starts;
}

// Returns where a tensor begins in a rank's file. The table is dropped when it holds too many
// entries.
std::uint64_t PlannedPieces::start(int rank, std::size_t tensor) const {
  constexpr std::size_t kMaxRemembered = (std::size_t{64} << 20) / sizeof(Start);
  auto found = starts_.find(rank);
  if (found == starts_.end()) {
    if (remembered_ > kMaxRemembered) {
      starts_.clear();
      remembered_ = 0;
    }
    found = starts_.emplace(rank, starts_of(rank)).first;
    remembered_ += found->second.size();
  }
  const auto at = std::ranges::lower_bound(found->second, tensor, {}, &Start::tensor);
  if (at == found->second.end() || at->tensor != tensor) {
    throw Error(Errc::internal,
                "the plan disagrees with itself on what rank " + std::to_string(rank) + " writes");
  }
  return at->offset;
}

// The chunks of one rank in a tensor follow each other in its file, so only the first offset of
// each rank is looked up.
void PlannedPieces::for_each_piece(std::size_t tensor, std::int64_t begin, std::int64_t end,
                                   const VisitPiece& visit) const {
  const PlannedTensor& planned = plan_.tensors.at(tensor);
  int rank = -1;
  std::uint64_t offset = 0;
  plan_.rule->for_each_chunk(tensor, begin, end, [&](int of_rank, const PlannedChunk& chunk) {
    // The lock covers only the tables; `visit` reads files.
    std::uint64_t nbytes = 0;
    {
      const std::lock_guard lock(mutex_);
      offset = of_rank == rank ? offset : start(of_rank, tensor);
      nbytes = sizes_(planned.dtype, chunk.box.sizes);
    }
    rank = of_rank;
    const std::uint64_t at = std::exchange(offset, offset + nbytes);
    const std::int64_t first = element_in_tensor(planned.shape, chunk.box, 0);
    // A chunk is contiguous in the tensor. The rule may visit chunks outside of the range.
    if (first < end && first + chunk.box.numel() > begin) {
      visit({.box = chunk.box,
             .file = first_file_ + static_cast<std::uint32_t>(of_rank),
             .offset = at,
             .nbytes = nbytes,
             .packing = Packing::archive,
             .mark = mark_of(plan_, planned.name, chunk.box)});
    }
  });
}

}  // namespace acc::checkpoint::dcp
