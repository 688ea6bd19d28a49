#pragma once

#include "acc/collectives/process_group.hpp"
#include "device/device.hpp"
#include "sharding/view_guard.hpp"
#include "trace/tracer.hpp"

#include <cstdint>
#include <deque>
#include <functional>

namespace acc::sharding {

/// FSDP's limit_all_gathers: how far the program may run ahead of its device. A gather waits, on
/// the host, until the device has let go of all but one of the buffers that were freed. On the CPU
/// a buffer that is freed is free, so nothing ever waits there.
class GatherLimiter {
 public:
  explicit GatherLimiter(trace::Tracer* tracer) : tracer_(tracer) {}
  /// `released`: when the device no longer reads a buffer that was freed.
  void freed(device::EventPtr released) { freed_.push_back(std::move(released)); }
  void before_gather();

 private:
  static constexpr std::size_t kMostFreed = 2;  ///< that the device may still read (FSDP 1)
  trace::Tracer* tracer_;
  std::deque<device::EventPtr> freed_;
};

/// Buffers for gathered weights, reused from unit to unit. All ranks acquire and release in the
/// same order, so that they agree on which one is meant.
class GatherPool {
 public:
  /// usual_nbytes: the size of a buffer for less, so that it serves every unit but the root.
  /// `limiter` may be null; it outlives this, as `device` and `guard` do.
  GatherPool(collectives::ProcessGroup& group, device::Device& device, std::size_t usual_nbytes,
             GatherLimiter* limiter, ViewGuard& guard)
      : group_(group),
        device_(device),
        usual_nbytes_(usual_nbytes),
        limiter_(limiter),
        guard_(guard) {}
  collectives::BufferPtr acquire(std::size_t nbytes);
  void release(const collectives::BufferPtr& buffer);
  /// Bytes of all buffers, counting memory shared by a host's ranks once a host.
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  collectives::ProcessGroup& group_;
  device::Device& device_;
  std::size_t usual_nbytes_;
  GatherLimiter* limiter_;
  ViewGuard& guard_;
  std::deque<collectives::BufferPtr> free_;
  std::int64_t held_nbytes_ = 0;
};

/// Gathers of what a step has updated, of which at most `max_numel` elements are under way at once
/// (allgather_bucket_size); a gather that is larger goes alone. 0: no bound.
class GatherWindow {
 public:
  explicit GatherWindow(std::int64_t max_numel) : max_numel_(max_numel) {}
  /// Waits for the oldest until `numel` more fit, then starts `gather`.
  collectives::WorkPtr start(std::int64_t numel,
                             const std::function<collectives::WorkPtr()>& gather);

 private:
  struct Flight {
    collectives::WorkPtr gather;
    std::int64_t numel;
  };
  std::int64_t max_numel_;
  std::int64_t under_way_ = 0;
  std::deque<Flight> flights_;
};

/// Buffers for full gradients on their way to a reduction. A buffer comes back into use when every
/// peer has read it; at most `kInFlight` are waited for lazily, none without `overlaps`
/// (overlap_comm).
class GradientPool {
 public:
  GradientPool(collectives::ProcessGroup& group, trace::Tracer* tracer, bool overlaps)
      : group_(group), tracer_(tracer), overlaps_(overlaps) {}
  collectives::BufferPtr acquire(std::size_t nbytes);
  /// `reduced` is called when what is computed from then on comes after the reduction.
  void in_flight(collectives::BufferPtr buffer, collectives::WorkPtr reduction,
                 std::function<void()> reduced);
  /// Waits for all reductions.
  void drain();
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  static constexpr std::size_t kInFlight = 2;
  void retire_oldest();
  collectives::ProcessGroup& group_;
  trace::Tracer* tracer_;
  bool overlaps_;
  struct Flight {
    collectives::BufferPtr buffer;
    collectives::WorkPtr reduction;
    std::function<void()> reduced;
  };
  std::deque<Flight> flights_;
  std::deque<collectives::BufferPtr> free_;
  std::int64_t held_nbytes_ = 0;
};

/// Memory of this rank's device alone, reused from unit to unit in the order of the compute stream.
class ScratchPool {
 public:
  /// Both outlive this.
  ScratchPool(device::Device& device, ViewGuard& guard) : device_(device), guard_(guard) {}
  device::MemoryPtr acquire(std::size_t nbytes);
  void release(device::MemoryPtr scratch) { free_.push_back(std::move(scratch)); }
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  device::Device& device_;
  ViewGuard& guard_;
  std::deque<device::MemoryPtr> free_;
  std::int64_t held_nbytes_ = 0;
};

}  // namespace acc::sharding
