// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "catalog/piece_source.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace acc::checkpoint {

/// Pool of tile buffers, one for each call in progress. Thread-safe.
class Scratch {
 public:
  using Tile = std::unique_ptr<std::byte[]>;  ///< [torch::kBlock]
  Tile take();
  void give_back(Tile tile);

 private:
  std::mutex mutex_;
  std::vector<Tile> free_;
};

/// Reads the runs of one piece, in rising order, during one call of TensorReader. Works tile by
/// tile, where a tile is the block that one checksum covers, so that bytes are checked and
/// converted while they are in the cache.
class PieceReader {
 public:
  /// `all`: true if the runs will cover all of the piece.
  PieceReader(PieceSource source, const StoredTensor& tensor, const StoredPiece& piece, bool all,
              Scratch& scratch);
  PieceReader(const PieceReader&) = delete;
  PieceReader& operator=(const PieceReader&) = delete;
  ~PieceReader();

  /// Reads elements [first, first + numel) of the piece into `out`. Throws Error(config), also for
  /// damage.
  void read(std::int64_t first, std::int64_t numel, Dtype dtype, std::byte* out);
  /// To be called after the last run. Checks a piece that has only one checksum for all of it.
  void finish() const;
  /// To be called instead of `read`. Reads and checks all blocks in which the piece lies, or all of
  /// its record if that has only one checksum. Returns true if there was a checksum.
  bool verify();

 private:
  enum class Check { none, blocks, whole };

  struct Range {
    std::uint64_t begin = 0, end = 0;  ///< offsets in the file, in bytes
    [[nodiscard]] std::uint64_t nbytes() const noexcept { return end - begin; }
  };

  [[nodiscard]] Range tile_at(std::uint64_t byte) const noexcept;
  [[nodiscard]] std::uint32_t expected_at(Range tile) const noexcept;
  void read_tile(Range tile, std::byte* to);
  void fill_scratch(Range wanted);
  [[noreturn]] void damaged(Range range, std::uint32_t expected, std::uint32_t found) const;

  PieceSource source_;
  const StoredTensor& tensor_;
  const StoredPiece& piece_;
  Scratch& scratch_;
  std::size_t element_;
  Check check_ = Check::none;
  std::uint32_t whole_crc32_ = 0;
  Scratch::Tile tile_;
  Range in_tile_;  ///< the bytes that `tile_` holds
};

}  // namespace acc::checkpoint
