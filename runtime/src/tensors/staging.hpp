// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collectives/shm/staging_chunks.hpp"
#include "kernels/kernels.hpp"

#include <cstddef>
#include <cstdint>
#include <string>

namespace acc::tensors {

enum class Kind : std::uint8_t {
  barrier,
  all_reduce,
  reduce,
  reduce_scatter,
  broadcast,
  all_gather,
  gather,
  scatter,
  all_to_all
};

/// Everything in which the ranks' calls must agree. A rank publishes it with each chunk. `root` and
/// `op` are 0 where the kind has none.
struct Call {
  std::uint32_t number =
      0;  ///< of the group's collectives, from 1, with refused ones; set by Staging
  Kind kind = Kind::barrier;
  kernels::Element element = kernels::Element::uint8;
  kernels::ElementOp op = kernels::ElementOp::sum;
  std::uint8_t unused = 0;
  std::int32_t root = 0;      ///< group rank
  std::uint32_t refused = 0;  ///< collectives that this rank has refused so far
  std::uint64_t count = 0;    ///< elements per rank; own elements if sizes may differ between ranks

  [[nodiscard]] bool agrees_with(const Call& other) const noexcept {
    const bool may_differ = kind == Kind::all_gather || kind == Kind::all_to_all;
    return number == other.number && kind == other.kind && element == other.element &&
           op == other.op && root == other.root && (may_differ || count == other.count);
  }
};

/// Staging chunks that begin with a header, the call of the rank, which a reader compares with its
/// own. The counter `posted` counts the sums that a rank has added to chunks already posted.
class Staging : private collectives::StagingChunks {
 public:
  /// Bytes of data per chunk. A multiple of every element's size and of a cache line.
  static constexpr std::size_t kHeader = 64;
  static constexpr std::size_t kPiece = collectives::kStagingChunk - kHeader;

  using StagingChunks::finish;
  using StagingChunks::post;
  using StagingChunks::StagingChunks;

  /// Begins the next collective of the group.
  void begin(Call call);
  /// Begins the next chunk and returns this rank's piece of it, kPiece bytes.
  std::byte* next_piece();
  /// Waits until `rank` has posted the current chunk, compares its call, and returns its data.
  const std::byte* piece_of(int rank);
  /// Announces that this rank has put its part of a sum into its piece.
  void post_sum();
  /// Waits for the part of `rank`.
  void await_sum(int rank);

  [[noreturn]] void fail(const std::string& reason, int at_fault_rank);
  [[nodiscard]] std::string describe() const;

 private:
  [[nodiscard]] Call call_of(int rank) const;
  [[noreturn]] void fail_different();
  [[nodiscard]] std::string name() const;

  Call call_;
  std::uint32_t calls_ = 0;  ///< without refused ones
  std::uint32_t sums_ = 0;
};

}  // namespace acc::tensors
