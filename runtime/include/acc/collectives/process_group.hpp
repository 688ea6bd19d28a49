#pragma once

#include "acc/runtime/types.hpp"

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace acc::device {
class Event;
}

namespace acc::collectives {

/// One issued collective. Belongs to the thread that uses the group; destroying it does not cancel.
class Work {
 public:
  virtual ~Work() = default;
  /// Orders what this rank computes from now on after the result: in host memory by returning when
  /// it is there, in a GPU's memory by letting the compute stream wait for it. Throws
  /// Error(collective | timeout | connection), which names the rank at fault; the group is then
  /// aborted.
  virtual void wait() = 0;
  /// The same, and besides this rank's input may be overwritten: every peer has read it.
  virtual void wait_released() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

/// Memory made by all ranks of a group together. What it is for decides who maps it:
/// *gathered* memory is one copy for all ranks of a host; *contribution* memory is one piece a
/// rank, which the peers on the host can read. Freed with the last reference on each rank.
class GroupBuffer {
 public:
  virtual ~GroupBuffer() = default;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t nbytes() const noexcept { return nbytes_; }
  /// Ranks of this host that map the same bytes; 1 for private memory.
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

/// How a reduction ends: `out = (accumulate ? out : 0) + scale * sum`.
struct ReduceOptions {
  float scale = 1.0F;
  bool accumulate = false;
};

/// A communicator over an ordered set of ranks; the only way to another rank. Collectives are
/// asynchronous and run in issue order; all ranks issue the same ones in the same order, with the
/// same sizes. Arrays lie in memory of the device that the group is for and are read and written
/// after everything that was issued to its compute stream before the call; figures
/// (`all_reduce` of doubles) lie in host memory and are there when `wait` returns. One thread uses
/// a group. Sums run in rank order, so every rank sees the same bits.
/// A peer that calls another collective or size, is dead, or aborted, ends the wait in an Error
/// that names it.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  [[nodiscard]] virtual int rank() const noexcept = 0;  ///< place of this process in the group
  [[nodiscard]] virtual int size() const noexcept = 0;
  /// Back end and members for messages, e.g. "shm[0,1]".
  [[nodiscard]] virtual std::string describe() const = 0;

  /// True when gathered memory is one mapping for all ranks of the group: a rank's shard then *is*
  /// its slice of everybody's full parameter, and a gather moves nothing.
  [[nodiscard]] virtual bool shares_gathered_memory() const noexcept = 0;
  /// Memory for gathered weights. Collective. Zero-filled.
  virtual BufferPtr allocate_gathered(std::size_t nbytes) = 0;
  /// Memory that the peers of this host can read, for shards and gradients. Collective.
  /// Zero-filled.
  virtual BufferPtr allocate_contribution(std::size_t nbytes) = 0;
  /// Says that this rank no longer reads `gathered`, so that a later all_gather may fill it.
  virtual void release_gathered(const BufferPtr& gathered) = 0;

  /// Gathers each rank's shard, in rank order. shard: [shard_nbytes], out: [shard_nbytes * size()];
  /// shard may be its slice of out.
  virtual WorkPtr all_gather(const void* shard, void* out, std::size_t shard_nbytes) = 0;
  /// Sums over ranks, each keeping its slice. in: [shard_numel * size()] float32, bfloat16 or
  /// float16; out: [shard_numel] float32, summed in float32 (NCCL sums in `dtype`). Infinities and
  /// NaN survive. out may be this rank's slice of a float32 `in`.
  virtual WorkPtr reduce_scatter(const void* in, float* out, std::size_t shard_numel, DType dtype,
                                 ReduceOptions options) = 0;
  /// Sums in place, [numel] float32; the result is multiplied by `scale`.
  virtual WorkPtr all_reduce(float* data, std::size_t numel, float scale) = 0;
  /// Combines a few figures at once, [up to 8]; same result on all ranks.
  virtual WorkPtr all_reduce(std::span<double> data, ReduceOp op) = 0;
  virtual WorkPtr broadcast(void* data, std::size_t nbytes, int root) = 0;
  /// What is issued from now on comes after `event` too, a point of another stream of the device
  /// that this group is for. On the CPU there is nothing to wait for.
  virtual void after(const std::shared_ptr<device::Event>& event) = 0;
  /// Complete when every rank has issued it.
  virtual WorkPtr barrier() = 0;

  /// Completes what can be completed without blocking.
  virtual void progress() = 0;
  /// Why this group cannot go on (aborted, a peer is dead), or nothing. Does not block; any thread.
  [[nodiscard]] virtual std::optional<std::string> failure() const { return std::nullopt; }
  /// Makes every pending and later wait of all peers fail with `reason`.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace acc::collectives
