// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Division of a conversion into units of work. Pure.
namespace acc::checkpoint::conversion {

/// A stored tensor that goes into an output, with its name and dtype there.
struct OutputTensor {
  std::string name;
  const StoredTensor* from = nullptr;
  Dtype dtype = Dtype::f32;
  std::string same_as = {};  ///< an earlier tensor in the list with the same bytes; empty: none

  [[nodiscard]] std::int64_t numel() const noexcept { return numel_of(from->shape); }
  [[nodiscard]] std::uint64_t nbytes() const noexcept {
    return static_cast<std::uint64_t>(numel()) * size_of(dtype);
  }
};

std::vector<const StoredTensor*> sources_of(std::span<const OutputTensor> tensors);
/// Returns the size of all tensors. Those that share their bytes count once.
std::uint64_t nbytes_of(std::span<const OutputTensor> tensors);

/// Elements [begin, begin + numel) of a tensor, row-major.
struct Tile {
  std::size_t tensor = 0;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};

/// Size of a tile in bytes of the stored dtype. A thread holds one tile at a time. It stays in a
/// second-level cache between reading and writing.
inline constexpr std::uint64_t kTileBytes = 1 << 20;

/// Returns the range of elements that a box is; nothing if the box is not contiguous.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
std::optional<Range> range_of(const Shape& shape, const Box& box);

/// Cuts tensors into tiles of at most `tile_nbytes` that cover every element once, in order. A tile
/// begins at the beginning of each stored piece, and further tiles follow in full length, so that
/// no checksum block is read twice.
std::vector<Tile> cut_tiles(std::span<const OutputTensor> tensors,
                            std::uint64_t tile_nbytes = kTileBytes);

/// The same for elements [begin, end) of one tensor, which has `number` in the caller's list.
void cut_tiles(const StoredTensor& tensor, std::size_t number, Range range,
               std::uint64_t tile_nbytes, std::vector<Tile>& tiles);

}  // namespace acc::checkpoint::conversion
