#pragma once

#include "acc/collectives/process_group.hpp"
#include "device/device.hpp"
#include "trace/tracer.hpp"

#include <cstdint>
#include <deque>
#include <functional>

namespace acc::sharding {

/// Buffers for gathered weights, reused from unit to unit. All ranks acquire and release in the
/// same order, so that they agree on which one is meant.
class GatherPool {
 public:
  GatherPool(collectives::ProcessGroup& group, std::size_t usual_nbytes)
      : group_(group), usual_nbytes_(usual_nbytes) {}
  collectives::BufferPtr acquire(std::size_t nbytes);
  void release(const collectives::BufferPtr& buffer);
  /// Bytes of all buffers, counting memory shared by a host's ranks once a host.
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  collectives::ProcessGroup& group_;
  std::size_t usual_nbytes_;
  std::deque<collectives::BufferPtr> free_;
  std::int64_t held_nbytes_ = 0;
};

/// Buffers for full gradients on their way to a reduction. A buffer comes back into use when every
/// peer has read it; at most `kInFlight` are waited for lazily.
class GradientPool {
 public:
  GradientPool(collectives::ProcessGroup& group, trace::Tracer* tracer)
      : group_(group), tracer_(tracer) {}
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
  explicit ScratchPool(device::Device& device) : device_(device) {}
  device::MemoryPtr acquire(std::size_t nbytes);
  void release(device::MemoryPtr scratch) { free_.push_back(std::move(scratch)); }
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  device::Device& device_;
  std::deque<device::MemoryPtr> free_;
  std::int64_t held_nbytes_ = 0;
};

}  // namespace acc::sharding
