#pragma once

#include "checkpoint/catalog/catalog.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// How a conversion is cut into pieces of work. Pure.
namespace acc::checkpoint::conversion {

/// A stored tensor on its way into an output, with its name and dtype there.
struct OutputTensor {
  std::string name;
  const StoredTensor* from = nullptr;
  Dtype dtype = Dtype::f32;

  [[nodiscard]] std::int64_t numel() const noexcept { return numel_of(from->shape); }
  [[nodiscard]] std::uint64_t nbytes() const noexcept {
    return static_cast<std::uint64_t>(numel()) * size_of(dtype);
  }
};

std::vector<const StoredTensor*> sources_of(std::span<const OutputTensor> tensors);
std::uint64_t nbytes_of(std::span<const OutputTensor> tensors);

/// Elements [begin, begin + numel) of a tensor, row-major.
struct Tile {
  std::size_t tensor = 0;
  std::int64_t begin = 0;
  std::int64_t numel = 0;
};

/// What a thread holds of a tensor at once, in bytes of the stored dtype: it stays in a
/// second-level cache between reading and writing.
inline constexpr std::uint64_t kTileBytes = 1 << 20;

/// The range of elements that a box is, where it is one.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
std::optional<Range> range_of(const Shape& shape, const Box& box);

/// All elements of the tensors, once, in order, in tiles of at most `tile_nbytes`. A tile begins
/// where a stored piece does and goes on in whole tiles from there, so that no block of checksums
/// is read twice.
std::vector<Tile> cut_tiles(std::span<const OutputTensor> tensors,
                            std::uint64_t tile_nbytes = kTileBytes);

/// The same for elements [begin, end) of one tensor, `number` in the list of its caller.
void cut_tiles(const StoredTensor& tensor, std::size_t number, Range range,
               std::uint64_t tile_nbytes, std::vector<Tile>& tiles);

}  // namespace acc::checkpoint::conversion
