// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/collectives/process_group.hpp"
#include "acc/settings/strategy.hpp"
#include "device/device.hpp"

#include <cstdint>
#include <deque>

namespace acc::sharding {

/// Copies reduced gradient shards from the GPU to host memory for an offloaded optimizer, or from
/// host memory to a file, on a separate stream: each copy follows its reduction and overlaps with
/// computation. At most BufferCounts::offloaded are in GPU memory at once; a further reduction
/// waits for the oldest copy.
class GradientOffload {
 public:
  /// group: of the reductions; device: the GPU, or the one that copies to the file; updater: the
  /// CPU device that adds. All arguments outlive this object.
  GradientOffload(collectives::ProcessGroup& group, device::Device& device, device::Device& updater,
                  const settings::BufferCounts& counts);
  /// Returns GPU memory for a shard's reduced gradient, [numel] float32, which the group may use
  /// next.
  device::MemoryPtr acquire(std::int64_t numel);
  /// Copies `reduced` to `host`, or adds it to `host` if `accumulate`. host: [numel]. ready: point
  /// at which `reduced` is there; null: after the work that was issued to the compute stream.
  void bring(device::MemoryPtr reduced, const device::EventPtr& ready, float* host,
             std::int64_t numel, bool accumulate);
  /// Blocks until all copies and additions are done.
  void drain();
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  struct Flight {
    device::MemoryPtr reduced;
    device::MemoryPtr staging;  ///< host memory for a copy that is added; null: a plain copy
    float* host;
    std::int64_t numel;
    device::EventPtr copied;  ///< end of the copy from the GPU
  };
  void retire_oldest();

  struct Free {
    device::MemoryPtr memory;
    device::EventPtr copied;  ///< end of the copy that reads it
  };
  collectives::ProcessGroup& group_;
  device::Device& device_;
  device::Device& updater_;
  device::StreamPtr copies_;
  std::size_t max_flights_;  ///< copies under way; one more shard is being reduced
  std::deque<Flight> flights_;
  std::deque<Free> free_;
  std::deque<device::MemoryPtr> free_staging_;
  std::int64_t held_nbytes_ = 0;
};

}  // namespace acc::sharding
