#pragma once

#include "checkpoint/catalog/piece_source.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace acc::checkpoint {

/// Memory for tiles, one for each call that is under way. Any thread.
class Scratch {
 public:
  using Tile = std::unique_ptr<std::byte[]>;  ///< [torch::kBlock]
  Tile take();
  void give_back(Tile tile);

 private:
  std::mutex mutex_;
  std::vector<Tile> free_;
};

/// Reads runs of one piece, which rise, in one call of TensorReader: tile by tile, a tile being the
/// block that has a checksum, so that bytes are checked and converted while they are in the cache.
class PieceReader {
 public:
  /// `all`: the runs will be all of the piece.
  PieceReader(PieceSource source, const StoredTensor& tensor, const StoredPiece& piece, bool all,
              Scratch& scratch);
  PieceReader(const PieceReader&) = delete;
  PieceReader& operator=(const PieceReader&) = delete;
  ~PieceReader();

  /// Elements [first, first + numel) of the piece to `out`. Throws Error(config), also for damage.
  void read(std::int64_t first, std::int64_t numel, Dtype dtype, std::byte* out);
  /// After the last run: checks what has only a checksum of the whole.
  void finish() const;
  /// Instead of reading: reads and checks all blocks that the piece lies in, or all of its record
  /// where that has only one checksum. Whether there was anything to check by.
  bool verify();

 private:
  enum class Check { none, blocks, whole };

  struct Range {
    std::uint64_t begin = 0, end = 0;  ///< bytes of the file
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
  Range in_tile_;  ///< what `tile_` holds
};

}  // namespace acc::checkpoint
