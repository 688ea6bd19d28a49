#pragma once

#include "device/device.hpp"
#include "sharding/engine.hpp"

#include <deque>

namespace acc::sharding {

/// Brings reduced shards from a GPU to the host, where an offloaded optimizer wants them, beside
/// what the GPU computes. At most `kInFlight` shards wait on the GPU.
class GradientOffload {
 public:
  explicit GradientOffload(Engine& engine);
  /// Device memory for a shard's reduced gradient, float32.
  device::MemoryPtr acquire(std::int64_t numel);
  /// Copies `reduced` to `host`, or adds it. What computes it was issued to the compute stream.
  void bring(device::MemoryPtr reduced, float* host, std::int64_t numel, bool accumulate);
  /// Returns when all has been brought.
  void drain();

 private:
  static constexpr std::size_t kInFlight = 2;
  struct Flight {
    device::MemoryPtr reduced;
    device::MemoryPtr staging;  ///< host memory, where it is to be added; else null
    float* host;
    std::int64_t numel;
    device::EventPtr copied;
  };
  void retire_oldest();

  Engine& engine_;
  device::StreamPtr copies_;
  std::deque<Flight> flights_;
  std::deque<device::MemoryPtr> free_staging_;
};

}  // namespace acc::sharding
