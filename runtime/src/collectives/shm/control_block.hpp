#pragma once

#include "acc/runtime/types.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>

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
      "barrier",   "all_gather", "reduce_scatter", "all_reduce", "all_reduce (figures)",
      "broadcast", "allocate"};
  return kNames[static_cast<std::size_t>(kind)];
}

/// What a rank says of one collective when it issues it: enough for the peers to check that they
/// mean the same one and to find its input.
struct OpDescriptor {
  std::uint32_t sequence = 0;
  OpKind kind = OpKind::barrier;
  DType dtype = DType::byte;
  std::uint8_t detail = 0;  ///< root of a broadcast, operation of figures
  std::uint8_t staged = 0;  ///< 1: the input is private memory and travels through staging
  std::uint64_t count = 0;  ///< elements
  std::int32_t segment = -1;
  std::uint64_t offset = 0;  ///< of the input in the rank's part of the segment, bytes
  std::array<double, 8> figures{};

  [[nodiscard]] bool same_call(const OpDescriptor& other) const noexcept {
    return kind == other.kind && dtype == other.dtype && detail == other.detail &&
           count == other.count && staged == other.staged;
  }
};

inline constexpr std::uint32_t kDescriptorRing = 64;
inline constexpr std::size_t kStagingChunk = std::size_t{512} << 10;  ///< bytes; two a rank
inline constexpr std::size_t kAbortText = 512;

/// One rank's part of the control block. Counters only grow (modulo 2^32); each has one writer, its
/// rank, and wakes sleepers when it moves.
struct alignas(64) RankControl {
  struct alignas(64) Counter {
    std::atomic<std::uint32_t> value{0};
    std::atomic<std::uint32_t> sleepers{0};
  };
  Counter posted;          ///< collectives issued
  Counter finished;        ///< collectives whose inputs of the peers this rank has read
  Counter chunk_posted;    ///< staged chunks written
  Counter chunk_finished;  ///< staged chunks of the peers read
  std::atomic<std::int32_t> pid{0};
  std::atomic<std::uint32_t> departed{0};
  std::array<OpDescriptor, kDescriptorRing> ring;
};

/// Head of the shared memory of a group; `RankControl` for each rank follows.
struct alignas(64) ControlHead {
  std::atomic<std::uint32_t> abort_state{0};  ///< 0 none, 1 being written, 2 readable
  std::int32_t abort_rank = -1;  ///< that caused it, else that ended the group
  std::array<char, kAbortText> abort_text{};
};

}  // namespace acc::collectives
