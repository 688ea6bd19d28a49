// SPDX-License-Identifier: Apache-2.0
#include "convert/tiles.hpp"

#include <algorithm>

namespace acc::checkpoint::conversion {

std::vector<const StoredTensor*> sources_of(std::span<const OutputTensor> tensors) {
  std::vector<const StoredTensor*> sources;
  for (const OutputTensor& tensor : tensors) {
    sources.push_back(tensor.from);
  }
  return sources;
}

std::uint64_t nbytes_of(std::span<const OutputTensor> tensors) {
  std::uint64_t sum = 0;
  for (const OutputTensor& tensor : tensors) {
    sum += tensor.same_as.empty() ? tensor.nbytes() : 0;
  }
  return sum;
}

// A box is a range of elements if at most one dimension is cut, all before it have one index, and
// all after it are whole.
std::optional<Range> range_of(const Shape& shape, const Box& box) {
  std::size_t cut = shape.size();  // dimensions from here on are whole
  while (cut > 0 && box.sizes[cut - 1] == shape[cut - 1]) {
    --cut;
  }
  for (std::size_t d = 0; d + 1 < cut; ++d) {
    if (box.sizes[d] != 1) {
      return std::nullopt;
    }
  }
  std::int64_t begin = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    begin = begin * shape[d] + box.offsets[d];
  }
  return Range{begin, begin + box.numel()};
}

// Tiles start at the beginning of every stored piece, so that they coincide with its checksum
// blocks.
void cut_tiles(const StoredTensor& tensor, std::size_t number, Range range,
               std::uint64_t tile_nbytes, std::vector<Tile>& tiles) {
  std::vector<std::int64_t> starts = {range.begin};
  tensor.for_each_piece(range.begin, range.end, [&](const StoredPiece& piece) {
    const auto stored = range_of(tensor.shape, piece.box);
    if (stored && stored->begin > range.begin && stored->begin < range.end) {
      starts.push_back(stored->begin);
    }
  });
  std::sort(starts.begin(), starts.end());
  starts.push_back(range.end);
  const auto step =
      static_cast<std::int64_t>(std::max<std::uint64_t>(tile_nbytes / size_of(tensor.dtype), 1));
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
    for (std::int64_t begin = starts[i]; begin < starts[i + 1]; begin += step) {
      tiles.push_back({number, begin, std::min(step, starts[i + 1] - begin)});
    }
  }
}

std::vector<Tile> cut_tiles(std::span<const OutputTensor> tensors, std::uint64_t tile_nbytes) {
  std::vector<Tile> tiles;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    cut_tiles(*tensors[i].from, i, {0, tensors[i].numel()}, tile_nbytes, tiles);
  }
  return tiles;
}

}  // namespace acc::checkpoint::conversion
