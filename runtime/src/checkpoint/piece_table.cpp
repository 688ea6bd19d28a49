#include "checkpoint/piece_table.hpp"

#include <algorithm>

namespace acc::checkpoint {
namespace {

std::string range(std::int64_t begin, std::int64_t end) {
  return "elements " + std::to_string(begin) + " to " + std::to_string(end);
}

}  // namespace

void PieceTable::add(const std::string& tensor, const std::string& kind, StoredPiece piece) {
  auto& pieces = pieces_[{tensor, kind}];
  if (piece.numel > 0) {
    const auto place = std::upper_bound(
        pieces.begin(), pieces.end(), piece,
        [](const StoredPiece& a, const StoredPiece& b) { return a.offset < b.offset; });
    pieces.insert(place, piece);
  }
}

const std::vector<StoredPiece>& PieceTable::pieces(const std::string& tensor,
                                                   const std::string& kind) const {
  static const std::vector<StoredPiece> none;
  const auto found = pieces_.find({tensor, kind});
  return found == pieces_.end() ? none : found->second;
}

std::string PieceTable::cover_fault(const std::string& tensor, const std::string& kind,
                                    std::int64_t numel) const {
  std::int64_t position = 0;
  for (const StoredPiece& piece : pieces(tensor, kind)) {
    if (piece.offset < position) {
      return range(piece.offset, std::min(position, piece.offset + piece.numel)) +
             " are in more than one piece";
    }
    if (piece.offset > position) {
      return range(position, piece.offset) + " are in no piece";
    }
    if (piece.numel > numel - piece.offset) {
      return "a piece ends at element " + std::to_string(piece.offset + piece.numel) +
             ", the tensor has " + std::to_string(numel);
    }
    position = piece.offset + piece.numel;
  }
  return position == numel ? "" : range(position, numel) + " are in no piece";
}

std::vector<Overlap> PieceTable::overlaps(const std::string& tensor, const std::string& kind,
                                          std::int64_t offset, std::int64_t numel) const {
  const auto& all = pieces(tensor, kind);
  auto piece = std::partition_point(all.begin(), all.end(), [&](const StoredPiece& each) {
    return each.offset + each.numel <= offset;
  });
  std::vector<Overlap> result;
  for (; piece != all.end() && piece->offset < offset + numel; ++piece) {
    const std::int64_t begin = std::max(piece->offset, offset);
    const std::int64_t end = std::min(piece->offset + piece->numel, offset + numel);
    result.push_back({*piece, begin - piece->offset, begin - offset, end - begin});
  }
  return result;
}

}  // namespace acc::checkpoint
