// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/runtime/types.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace acc::device {
class Event;
}

namespace acc::collectives {

/// One issued collective. Used by the thread that uses the group. Destroying it does not cancel the
/// collective.
class Work {
 public:
  virtual ~Work() = default;
  /// Orders later computation after the result. For host memory it blocks until the result is
  /// there; for GPU memory it makes the compute stream wait and returns. Throws Error(collective |
  /// peer_lost | timeout | connection) that names the rank at fault; the group is then aborted.
  virtual void wait() = 0;
  /// Waits also until every peer has read this rank's input, which may then be overwritten.
  virtual void wait_released() = 0;
  /// True if the result is there, so that `wait` returns at once. May stay false until `wait`.
  [[nodiscard]] virtual bool is_complete() const { return false; }
  /// Point of a GPU's stream at which the result is there, with which work of other streams can be
  /// ordered behind it (`ProcessGroup::after`). Null if only `wait` tells, as for host memory.
  [[nodiscard]] virtual std::shared_ptr<device::Event> done() const { return nullptr; }
};
using WorkPtr = std::shared_ptr<Work>;

/// Memory that all ranks of a group allocate together. Its purpose decides how it is mapped:
/// *gathered* memory is one copy for all ranks of a host; *contribution* memory is one piece per
/// rank that the peers on the host can read. Freed with the last reference on each rank.
class GroupBuffer {
 public:
  virtual ~GroupBuffer() = default;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t nbytes() const noexcept { return nbytes_; }
  /// Number of ranks of this host that map the same bytes; 1 for private memory.
  [[nodiscard]] int sharers() const noexcept { return sharers_; }

  template <typename T>
  [[nodiscard]] T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }

 protected:
  std::byte* data_ = nullptr;
  std::size_t nbytes_ = 0;
  int sharers_ = 1;
};
using BufferPtr = std::shared_ptr<GroupBuffer>;

/// Last step of a reduction: `out = (accumulate ? out : 0) + scale * sum`.
struct ReduceOptions {
  float scale = 1.0F;
  bool accumulate = false;
  BlockCode code = {};  ///< how numbers are sent to other machines
};

/// Bytes of arrays that a rank has sent to ranks of other machines.
struct SentBytes {
  std::int64_t gathered = 0;  ///< in all_gathers
  std::int64_t reduced = 0;   ///< in reductions of arrays
};

/// A communicator over an ordered set of ranks; the runtime reaches other ranks only through
/// groups.
///
/// Order: collectives are asynchronous and run in issue order. All ranks issue the same collectives
/// in the same order with the same sizes. Memory: arrays lie in memory of the group's device; they
/// are read and written after everything that was issued to its compute stream before the call. The
/// doubles of `all_reduce` lie in host memory and are complete when `wait` returns. Sums run in
/// rank order, so every rank gets bitwise equal results. Threads: one thread uses a group, except
/// for `failure`. Errors: a peer that issues another collective or size, has died or has aborted
/// makes the wait throw an Error that names it (docs/errors.md): Error(peer_lost) if a rank has
/// left the job. The group cannot be used again.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] virtual int rank() const noexcept = 0;  ///< rank of this process within the group
  [[nodiscard]] virtual int size() const noexcept = 0;  ///< number of ranks
  /// Back end and members for messages, e.g. "shm[0,1]".
  [[nodiscard]] virtual std::string describe() const = 0;

  /// True if gathered memory is one mapping for all ranks of the group. A rank's shard then *is*
  /// its slice of the full parameter of every rank, and a gather copies nothing.
  [[nodiscard]] virtual bool shares_gathered_memory() const noexcept = 0;
  /// Allocates memory for gathered weights, filled with zeros. Collective.
  virtual BufferPtr allocate_gathered(std::size_t nbytes) = 0;
  /// Allocates memory that the peers of this host can read (shards, gradients), filled with zeros.
  /// Collective.
  virtual BufferPtr allocate_contribution(std::size_t nbytes) = 0;
  /// Takes over `old`, a buffer of a group of the same ranks and back end that this group replaces:
  /// memory of the same kind, size and address, filled with zeros. `old` must not be used again.
  /// Collective if `allocate_…` is. Throws Error(not_supported) where memory belongs to a device.
  virtual BufferPtr renew(const BufferPtr& old) = 0;
  /// Declares that this rank no longer reads `gathered`; a later all_gather may then write it.
  virtual void release_gathered(const BufferPtr& gathered) = 0;

  /// Gathers the shards of all ranks, in rank order. shard: [shard_nbytes]; out: [shard_nbytes *
  /// size()]. shard may be this rank's slice of out.
  virtual WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) = 0;
  /// The same for numbers that are sent to other machines in `code`. A group of several machines
  /// rounds the shards of all ranks to it, also the own one, so that every rank has the same
  /// result; a group of one machine, or without a code, gathers the shards as they are. shard:
  /// [shard_numel] of `dtype` (float32, bfloat16 or float16).
  virtual WorkPtr all_gather_coded(const void* shard, void* out, std::size_t shard_numel,
                                   DType dtype, BlockCode /*code*/) {
    return all_gather(shard, out, shard_numel * nbytes_of(dtype));
  }
  /// Sums over ranks and gives each rank its slice of the sum. in: [shard_numel * size()] of
  /// `dtype` (float32, bfloat16 or float16); out: [shard_numel] float32. The sum is computed in
  /// float32 (NCCL: in `dtype`); if ranks share hosts, the sum of each host is rounded to `dtype`.
  /// Infinities and NaN are kept; with `options.code`, an infinity may become NaN, also in the
  /// numbers next to it. out may be this rank's slice of a float32 `in`.
  virtual WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                                 ReduceOptions options) = 0;
  /// Sums over ranks in place and multiplies the sum by `scale`. data: [numel] float32. What is
  /// sent to other hosts is rounded to `dtype`; the sum is computed in float32. NCCL sums in
  /// `dtype`.
  virtual WorkPtr all_reduce(float* data, std::size_t numel, DType dtype, float scale) = 0;
  /// The same with sums over the ranks of a machine that are sent to other machines in `code`, if
  /// there is one, in place of `dtype`.
  virtual WorkPtr all_reduce_coded(float* data, std::size_t numel, DType dtype, float scale,
                                   BlockCode /*code*/) {
    return all_reduce(data, numel, dtype, scale);
  }
  /// Combines up to 8 doubles in place, in host memory; the result is the same on all ranks.
  virtual WorkPtr all_reduce(std::span<double> data, ReduceOp op) = 0;
  /// Sums up to 8 doubles over ranks in place, in memory of the group's device, and so without
  /// making the host wait for a GPU.
  virtual WorkPtr sum(double* data, std::size_t numel) {
    return all_reduce(std::span(data, numel), ReduceOp::sum);
  }
  /// Copies rank `root`'s data to all ranks. data: [nbytes].
  virtual WorkPtr broadcast(void* data, std::size_t nbytes, int root) = 0;
  /// Makes collectives that are issued from now on run after `event`, a point of another stream of
  /// the group's device. Does nothing on the CPU.
  virtual void after(const std::shared_ptr<device::Event>& event) = 0;
  /// A collective without data; complete when every rank has issued it.
  virtual WorkPtr barrier() = 0;

  /// True if the group connects ranks of several machines.
  [[nodiscard]] virtual bool spans_machines() const noexcept { return false; }
  /// Bytes that this rank has sent so far over host memory; NCCL's messages are not counted.
  [[nodiscard]] virtual SentBytes sent() const noexcept { return {}; }

  /// defer: true lets the peers learn of the collectives that are issued from now on together, when
  /// it is false again or this rank waits for one of them: each of them may wake sleeping peers.
  virtual void defer_posts(bool defer) { static_cast<void>(defer); }
  /// Advances the collectives under way without blocking.
  virtual void progress() = 0;
  /// Returns the reason why this group has failed (aborted, a peer is dead), or nothing. Does not
  /// block. Any thread may call it.
  [[nodiscard]] virtual std::optional<std::string> failure() const { return std::nullopt; }
  /// Aborts the group: every pending and later wait, on all ranks, fails with `reason`, and with
  /// `code`: peer_lost if this rank leaves the job, else collective.
  virtual void abort(const std::string& reason, Errc code) noexcept = 0;
};

}  // namespace acc::collectives
