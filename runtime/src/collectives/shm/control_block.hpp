// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/types.hpp"

#include <array>
#include <atomic>
#include <cstdint>

// Layout of the memory that the ranks of one host share to coordinate their collectives. The block
// is one memfd that rank 0 makes and passes to the others over `DescriptorLinks`:
//
//   ControlHead | RankControl[size] | staging chunks: size x 2 x kStagingChunk
//
// Every field of RankControl has one writer, the rank that it belongs to; `pid` alone is written by
// rank 0, before any other rank has the block. A rank does not trust what a peer writes: it copies
// a descriptor before use and checks segment, offset and length against its own table of segments.
namespace acc::collectives {

enum class OpKind : std::uint8_t {
  barrier,
  all_gather,
  reduce_scatter,
  all_reduce,
  scalars,
  broadcast,
  allocate
};

constexpr std::string_view to_string(OpKind kind) noexcept {
  constexpr std::array<std::string_view, 7> kNames = {
      "barrier",   "all_gather", "reduce_scatter", "all_reduce", "all_reduce (scalars)",
      "broadcast", "allocate"};
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "an unknown call";  // a peer may write any value
}

/// Description of one collective that a rank publishes when it issues it. The peers use it to check
/// that all ranks made the same call, and to find the rank's input.
struct OpDescriptor {
  std::uint32_t sequence = 0;  ///< number of the collective in its group, from 1
  OpKind kind = OpKind::barrier;
  DType dtype = DType::byte;
  std::uint8_t detail = 0;    ///< root of a broadcast, ReduceOp of a scalar all_reduce
  std::uint8_t staged = 0;    ///< 1: the input is private memory and goes through staging chunks
  std::uint64_t count = 0;    ///< elements per rank; bytes for byte arrays
  std::int32_t segment = -1;  ///< id of the shared segment that has the input; -1: none
  std::uint64_t offset = 0;   ///< bytes from the start of the rank's part of the segment
  std::array<double, 8> figures{};  ///< input of a scalar all_reduce

  /// True if both ranks made the same call. Inputs may lie at different places.
  [[nodiscard]] bool same_call(const OpDescriptor& other) const noexcept {
    return kind == other.kind && dtype == other.dtype && detail == other.detail &&
           count == other.count && staged == other.staged;
  }
};

/// Number of descriptors that a rank keeps published, which limits the collectives in flight. Slot
/// n % kDescriptorRing is reused only after every rank has finished collective n.
inline constexpr std::uint32_t kDescriptorRing = 64;
inline constexpr std::size_t kStagingChunk = std::size_t{512} << 10;  ///< bytes; two per rank
inline constexpr std::size_t kAbortText = 512;                        ///< bytes, with the final NUL

/// One rank's part of the control block. Counters only grow (modulo 2^32, compared by signed
/// difference). Each counter has one writer, the rank itself, and any number of waiting peers.
///
/// Publication order: the writer first stores the data (the descriptor, the input, the staged
/// chunk), then stores the counter. A reader loads the counter with acquire order before it reads
/// the data, so it sees everything that was written before the counter moved.
///
/// Sleeping: a waiter increments `sleepers`, loads `value` again, and sleeps on the futex `value`
/// if the target is not reached. The writer stores `value`, then loads `sleepers`, and wakes the
/// futex only if that is not zero, which saves a system call per collective. All four accesses are
/// sequentially consistent, so at least one side sees the other's store and no wake-up is lost.
struct alignas(64) RankControl {
  /// On a separate cache line, so that waiters of one counter do not slow down the others.
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> value{0};
    std::atomic<std::uint32_t> sleepers{0};
  };
  Counter posted;          ///< collectives that this rank has issued
  Counter finished;        ///< collectives in which this rank no longer reads the peers' inputs
  Counter chunk_posted;    ///< staging chunks that this rank has written
  Counter chunk_finished;  ///< staging chunks for which this rank has read the peers' content
  std::int32_t pid = 0;    ///< set by rank 0 before it sends the block
  std::atomic<std::uint32_t> departed{0};  ///< 1: the rank has destroyed its group
  /// What the rank waits for, so that a timeout blames the right rank: `encode` of an Awaited, 0
  /// for nothing. Two, because messages are awaited on another thread.
  std::atomic<std::uint64_t> awaits{0};
  std::atomic<std::uint64_t> awaits_message{0};
  std::array<OpDescriptor, kDescriptorRing> ring;  ///< collective n is in slot n % kDescriptorRing
};

/// A rank's wait for a counter of a peer, or for a message.
struct Awaited {
  static constexpr std::array kCounters = {&RankControl::posted, &RankControl::finished,
                                           &RankControl::chunk_posted,
                                           &RankControl::chunk_finished};
  static constexpr std::size_t kMessage = kCounters.size();

  int peer = -1;
  std::size_t counter = kMessage;  ///< index in kCounters
  std::uint32_t target = 0;

  [[nodiscard]] std::uint64_t encode() const noexcept {
    return (std::uint64_t{static_cast<std::uint32_t>(peer) + 1U} << 40U) |
           (std::uint64_t{counter} << 32U) | target;
  }
  /// For 0: peer is -1.
  static Awaited decode(std::uint64_t bits) noexcept {
    return {static_cast<int>(bits >> 40U) - 1, static_cast<std::size_t>((bits >> 32U) & 0xffU),
            static_cast<std::uint32_t>(bits)};
  }
};

/// Head of a group's control block; one `RankControl` per rank follows. The first rank that aborts
/// moves `abort_state` from 0 to 1, writes rank, code and text, and stores 2 with release order.
/// Ranks that abort later leave the first reason in place.
struct alignas(64) ControlHead {
  std::atomic<std::uint32_t> abort_state{0};  ///< 0: not aborted; 1: being written; 2: readable
  std::int32_t abort_rank = -1;               ///< global rank at fault; -1: unknown
  std::uint32_t abort_lost = 0;               ///< 1: Errc::peer_lost; else Errc::collective
  std::array<char, kAbortText> abort_text{};  ///< the reason, NUL-terminated
};

}  // namespace acc::collectives
