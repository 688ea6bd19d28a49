// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "collectives/shm/shm_channel.hpp"
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

/// The chunk protocol over the control block of a group. A collective is a series of chunks, the
/// same number on all ranks. For each chunk a rank posts a header (its call) and up to `kPiece`
/// bytes in its own staging memory, reads what it needs of the peers' chunks, and declares that it
/// has finished reading. A rank has two pieces of staging memory and uses them alternately, so it
/// can be one chunk ahead of slower peers.
///
/// Counters: `chunk_posted` and `chunk_finished` as in ShmGroup; `posted` counts the sums that a
/// rank has added to chunks already posted.
///
/// All functions that wait throw Error(collective | timeout), which names the rank at fault, and
/// abort the group.
class Staging {
 public:
  /// Bytes of data per chunk. A multiple of every element's size and of a cache line.
  static constexpr std::size_t kHeader = 64;
  static constexpr std::size_t kPiece = collectives::kStagingChunk - kHeader;

  explicit Staging(collectives::ShmChannel& channel) : channel_(channel) {}

  /// Begins the next collective of the group.
  void begin(Call call);
  /// Waits until all ranks have finished the chunk before the last one, and returns this rank's
  /// piece for the next chunk, whose content is `post`ed afterwards.
  std::byte* next_piece();
  void post();
  /// Waits until `rank` has posted the current chunk, compares its call, and returns its data.
  const std::byte* piece_of(int rank);
  /// Announces that this rank has put its part of a sum into its piece.
  void post_sum();
  /// Waits for the part of `rank`.
  void await_sum(int rank);
  /// Declares that this rank does not read the current chunk any more.
  void finish();

  [[noreturn]] void fail(const std::string& reason, int at_fault_rank);
  [[nodiscard]] std::string describe() const;

 private:
  [[nodiscard]] Call call_of(int rank) const;
  [[noreturn]] void fail_different();
  [[nodiscard]] std::string name() const;

  collectives::ShmChannel& channel_;
  Call call_;
  std::uint32_t calls_ = 0;  ///< without refused ones
  std::uint32_t chunk_ = 0;  ///< number of the current chunk, over all collectives
  std::uint32_t sums_ = 0;
};

}  // namespace acc::tensors
