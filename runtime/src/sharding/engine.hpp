#pragma once

#include "acc/plugins/strategy.hpp"
#include "acc/runtime/reports.hpp"
#include "device/device.hpp"
#include "sharding/groups.hpp"
#include "trace/tracer.hpp"

#include <deque>
#include <functional>
#include <memory>
#include <string_view>

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

class GradientOffload;

/// What all units of a model share.
struct Engine {
  plugins::RuntimeSettings settings;
  plugins::StrategySwitches on;
  Groups groups;
  device::DevicePtr device;    ///< where the program computes
  device::DevicePtr updater;   ///< where the optimizer does: the same, or the CPU beside a GPU
  bool offload_param = false;  ///< between uses, shards lie in host memory beside a GPU
  device::StreamPtr fetches;   ///< on which they come from there; null where they do not
  DType compute_dtype = DType::float32;  ///< weights are gathered, gradients reduced in it
  DType view_dtype = DType::float32;     ///< what the program sees; a CPU widens to float32
  bool prefetches_forward = false;
  float gradient_scale = 1.0F;  ///< 1 / (world_size * gradient_accumulation_steps)
  std::unique_ptr<GatherPool> gathers;
  std::unique_ptr<GatherPool> hpz_gathers;
  std::unique_ptr<GradientPool> gradients;
  std::shared_ptr<GradientOffload> gradient_offload;  ///< null where nothing is offloaded
  std::unique_ptr<ScratchPool> scratch;
  std::shared_ptr<trace::Tracer> tracer;  ///< null: no trace
  TrafficReport traffic;
  int no_grad_depth = 0;

  [[nodiscard]] bool low_precision() const noexcept { return compute_dtype != DType::float32; }
  [[nodiscard]] bool offload_optimizer() const noexcept { return updater != device; }
  /// Zeroed memory for master weights, moments and reduced gradients: the updater's.
  [[nodiscard]] device::MemoryPtr allocate_state(std::int64_t numel, std::string_view what) const;
  /// Orders the updater after what was issued to the compute stream. Blocks where it is the CPU
  /// beside a GPU.
  void await_compute() const;
};

}  // namespace acc::sharding
