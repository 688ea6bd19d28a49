// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "acc/settings/strategy.hpp"
#include "device/device.hpp"
#include "sharding/view_guard.hpp"
#include "trace/tracer.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace acc::sharding {

struct Context;
class GradientOffload;

/// Buffers for gathered weights, reused by one unit after the other. All ranks must acquire and
/// release in the same order, so that a buffer is the same one on all ranks. A freed buffer is free
/// for the next gather at once, which the group orders behind the work that reads it. So a host
/// that runs ahead of the GPU needs no more buffers and never waits for one: this is what FSDP's
/// limit_all_gathers (rate limiter: arXiv 2304.11277, section 3.4.2) is for.
class GatherPool {
 public:
  /// All arguments outlive the pool.
  GatherPool(collectives::ProcessGroup& group, ViewGuard& guard) : group_(group), guard_(guard) {}
  /// Makes every new buffer large enough for `nbytes`, so that units of this size and below can use
  /// any buffer.
  void expect(std::size_t nbytes) { usual_nbytes_ = std::max(usual_nbytes_, nbytes); }
  /// Returns a buffer of at least `nbytes`, which may allocate collectively.
  collectives::BufferPtr acquire(std::size_t nbytes);
  /// Takes the buffer back. Work issued before may still read it: a later gather comes after that
  /// work.
  void release(const collectives::BufferPtr& buffer);
  /// Frees all buffers that are not in use.
  void clear();
  /// Bytes of all buffers; memory that the ranks of a host share counts once per host.
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  collectives::ProcessGroup& group_;
  std::size_t usual_nbytes_ = 0;
  ViewGuard& guard_;
  std::deque<collectives::BufferPtr> free_;
  std::int64_t held_nbytes_ = 0;
};

/// Limits the gathers of updated weights after a step: at most `max_numel` elements are under way
/// at once (allgather_bucket_size). A larger gather runs alone. 0: no limit.
class GatherWindow {
 public:
  explicit GatherWindow(std::int64_t max_numel) : max_numel_(max_numel) {}
  /// Waits for the oldest gathers until `numel` more elements fit, then starts `gather`. The caller
  /// keeps the work until it has waited for it: a gather whose work is gone counts no more.
  collectives::WorkPtr start(std::int64_t numel,
                             const std::function<collectives::WorkPtr()>& gather);
  /// Forgets the gathers under way.
  void clear();

 private:
  struct Flight {
    std::weak_ptr<collectives::Work> gather;
    std::int64_t numel;
  };
  std::int64_t max_numel_;
  std::int64_t under_way_ = 0;
  std::deque<Flight> flights_;
};

/// Buffers for whole gradients until they are reduced. A buffer is acquired when a unit's backward
/// first asks for a gradient, passed to `in_flight` with its reduction, and free again when every
/// peer has read it. `acquire` waits for the oldest reductions, so that no more than
/// BufferCounts::gradients are in use by reductions and by it. With one, `in_flight` waits for
/// the reduction.
class GradientPool {
 public:
  GradientPool(collectives::ProcessGroup& group, trace::Tracer* tracer,
               const settings::BufferCounts& counts)
      : group_(group), tracer_(tracer), buffers_(static_cast<std::size_t>(counts.gradients)) {}
  collectives::BufferPtr acquire(std::size_t nbytes);
  /// Allows this many times as many buffers: a unit has up to `flats` gradients.
  void expect(std::size_t flats) { buffers_ *= flats; }
  /// Hands the buffer over until `reduction`, which is for `unit`, has ended. reduced: called once
  /// later work is ordered after the reduction; may be empty.
  void in_flight(collectives::BufferPtr buffer, collectives::WorkPtr reduction,
                 const std::string& unit, std::function<void()> reduced);
  /// Takes back a buffer that is not reduced.
  void release(collectives::BufferPtr buffer) { free_.push_back(std::move(buffer)); }
  /// Waits for all reductions.
  void drain();
  /// Frees all buffers, and forgets the reductions under way.
  void clear();
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  void retire_oldest();
  collectives::ProcessGroup& group_;
  trace::Tracer* tracer_;
  std::size_t buffers_;
  struct Flight {
    collectives::BufferPtr buffer;
    collectives::WorkPtr reduction;
    std::string unit;  ///< empty without a tracer
    std::function<void()> reduced;
  };
  std::deque<Flight> flights_;
  std::deque<collectives::BufferPtr> free_;
  std::int64_t held_nbytes_ = 0;
};

/// Private memory of this rank's device, reused by one unit after the other. No waiting is needed:
/// all users issue their work to the compute stream, or order it after that stream.
class ScratchPool {
 public:
  /// Both arguments outlive the pool.
  ScratchPool(device::Device& device, ViewGuard& guard) : device_(device), guard_(guard) {}
  /// Returns memory of at least `nbytes`; its content is undefined.
  device::MemoryPtr acquire(std::size_t nbytes);
  void release(device::MemoryPtr scratch) { free_.push_back(std::move(scratch)); }
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  device::Device& device_;
  ViewGuard& guard_;
  std::deque<device::MemoryPtr> free_;
  std::int64_t held_nbytes_ = 0;
};

/// Copies of offloaded shards in memory of the device, from which peers gather. All ranks must
/// acquire and release in the same order. As with ScratchPool no waiting is needed.
class FetchPool {
 public:
  explicit FetchPool(collectives::ProcessGroup& group) : group_(group) {}
  /// Returns memory of at least `nbytes`; its content is undefined. May allocate collectively.
  collectives::BufferPtr acquire(std::size_t nbytes);
  void release(collectives::BufferPtr fetched) { free_.push_back(std::move(fetched)); }
  /// Frees all buffers that are not in use.
  void clear();
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  collectives::ProcessGroup& group_;
  std::deque<collectives::BufferPtr> free_;
  std::int64_t held_nbytes_ = 0;
};

/// All pools of one model. Two kinds: buffers that peers read or write (`gathers`,
/// `secondary_gathers`, `gradients`, `fetches`) are allocated collectively, so all ranks must
/// acquire and release them in the same order; scratch memory (`scratch`, `sums`) is local to this
/// rank. A pool grows to the largest number of buffers that were in use at once and keeps them
/// until the model ends.
struct Pools {
  /// Allocates nothing. context: outlives the pools.
  explicit Pools(const Context& context);
  ~Pools();
  Pools(const Pools&) = delete;
  Pools& operator=(const Pools&) = delete;

  /// Frees the buffers of groups, which are made anew. Those in use must be dropped, too. Not for
  /// an offloaded optimizer.
  void clear();

  GatherPool gathers;                           ///< full weights of transient flat parameters
  std::optional<GatherPool> secondary_gathers;  ///< the same from secondary copies, if any
  GatherWindow publications;                    ///< gathers of updated weights after a step
  GradientPool gradients;                       ///< whole gradients until they are reduced
  FetchPool fetches;                            ///< offloaded shards that are being gathered
  ScratchPool scratch;                          ///< widened weights, gradients in the view dtype
  ScratchPool sums;                             ///< float32 sums of gradients not reduced (no_sync)
  std::unique_ptr<GradientOffload> gradient_offload;  ///< null if gradients are not offloaded
};

}  // namespace acc::sharding
