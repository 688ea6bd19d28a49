// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"
#include "sharding/pools.hpp"

#include <deque>

namespace acc::sharding {

/// Copies reduced gradient shards from the GPU to host memory for an offloaded optimizer, on a
/// separate stream, so that the copies overlap with computation. At most `kInFlight` shards are in
/// GPU memory at once; `acquire` waits for the oldest copy before there are more.
class GradientOffload {
 public:
  /// device: the GPU; updater: the CPU device that adds. All arguments outlive this object.
  GradientOffload(device::Device& device, device::Device& updater, ScratchPool& scratch);
  /// Returns GPU memory for a shard's reduced gradient: [numel] float32.
  device::MemoryPtr acquire(std::int64_t numel);
  /// Copies `reduced` to `host`, or adds it to `host` if `accumulate`. host: [numel]. The work that
  /// computes `reduced` must have been issued to the compute stream.
  void bring(device::MemoryPtr reduced, float* host, std::int64_t numel, bool accumulate);
  /// Blocks until all copies and additions are done.
  void drain();

 private:
  static constexpr std::size_t kInFlight = 2;
  struct Flight {
    device::MemoryPtr reduced;
    device::MemoryPtr staging;  ///< host memory for a copy that is added; null: a plain copy
    float* host;
    std::int64_t numel;
    device::EventPtr copied;  ///< end of the copy from the GPU
  };
  void retire_oldest();

  device::Device& device_;
  device::Device& updater_;
  ScratchPool& scratch_;
  device::StreamPtr copies_;
  std::deque<Flight> flights_;
  std::deque<device::MemoryPtr> free_staging_;
};

}  // namespace acc::sharding
