#pragma once

#include "acc/plugins/strategy.hpp"
#include "acc/runtime/reports.hpp"
#include "sharding/groups.hpp"

#include <deque>
#include <memory>
#include <vector>

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
  explicit GradientPool(collectives::ProcessGroup& group) : group_(group) {}
  collectives::BufferPtr acquire(std::size_t nbytes);
  void in_flight(collectives::BufferPtr buffer, collectives::WorkPtr reduction);
  /// Waits for all reductions.
  void drain();
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  static constexpr std::size_t kInFlight = 2;
  void retire_oldest();
  collectives::ProcessGroup& group_;
  struct Flight {
    collectives::BufferPtr buffer;
    collectives::WorkPtr reduction;
  };
  std::deque<Flight> flights_;
  std::deque<collectives::BufferPtr> free_;
  std::int64_t held_nbytes_ = 0;
};

/// Private float32 memory for widened weights and gradients, reused from unit to unit.
class ScratchPool {
 public:
  std::vector<float> acquire(std::size_t numel);
  void release(std::vector<float> scratch) { free_.push_back(std::move(scratch)); }
  [[nodiscard]] std::int64_t held_nbytes() const noexcept { return held_nbytes_; }

 private:
  std::deque<std::vector<float>> free_;
  std::int64_t held_nbytes_ = 0;
};

/// What all units of a model share.
struct Engine {
  plugins::RuntimeSettings settings;
  plugins::StrategySwitches on;
  Groups groups;
  DType compute_dtype = DType::float32;
  float gradient_scale = 1.0F;  ///< 1 / (world_size * gradient_accumulation_steps)
  std::unique_ptr<GatherPool> gathers;
  std::unique_ptr<GatherPool> hpz_gathers;
  std::unique_ptr<GradientPool> gradients;
  ScratchPool scratch;
  TrafficReport traffic;
  int no_grad_depth = 0;

  [[nodiscard]] bool low_precision() const noexcept { return compute_dtype != DType::float32; }
};

}  // namespace acc::sharding
