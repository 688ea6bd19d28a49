#pragma once

#include "sharding/engine.hpp"
#include "sharding/flat_plan.hpp"
#include "sharding/shard_layout.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace acc::sharding {

/// The gradient of a flat parameter: where the program writes it, how it is reduced over the ranks,
/// and what of it is kept until the step. Two ways: whole, accumulated in float32 and reduced
/// before the step; or reduced to this rank's shard after every micro-step, but those under
/// no_sync, which are accumulated whole, in float32, until one without. What is ignored is kept
/// whole and reduced over nobody. An offloaded optimizer finds its part in host memory.
class FlatGradient {
 public:
  /// `owned`: the part that this rank's optimizer updates. `layout` outlives this.
  FlatGradient(Engine& engine, const FlatLayout& layout, Shard owned, FlatTraits traits);

  struct Target {
    void* data;
    bool written;
  };
  /// Where parameter `index` has its full gradient in the view dtype, and whether it was written
  /// before. Marks it.
  Target target(std::size_t index);
  /// Ends a micro-step: reduces to the shard where gradients are sharded, else (`last`) over all;
  /// under no_sync nothing.
  void close(bool last);
  /// Reduces what is left before a step.
  void flush();
  /// Between replicas; after every rank's reduction. `wait_reduction` then waits for it.
  void all_reduce_replicas();
  /// Brings an offloaded optimizer what it has not been brought yet.
  void bring();

  /// The reduced gradient of `owned`, float32, where the optimizer updates; valid after the
  /// reductions have been waited for.
  [[nodiscard]] float* reduced() const;
  void wait_reduction();
  void forget();
  [[nodiscard]] std::int64_t held_nbytes() const;

  /// Micro-steps since the last step, each by its number in `Engine::gradients_closed`; only where
  /// the NaN policy asks who was first.
  [[nodiscard]] const std::vector<std::int64_t>& closed() const noexcept { return closed_; }
  /// The first of them in which this rank's own gradient was not finite. Waits for the device.
  [[nodiscard]] std::optional<std::int64_t> first_non_finite() const;

 private:
  void allocate();
  void open();
  [[nodiscard]] bool is_open() const noexcept { return target_ != nullptr; }
  [[nodiscard]] bool writes_to_buffer() const;
  void watch();
  void end(bool reduces);
  void zero_unwritten();
  void reduce_to_shard();
  void contribute(std::byte* from, DType dtype);
  void offload(const device::MemoryPtr& reduced, bool accumulate);
  collectives::WorkPtr all_reduce_replicas(float* shard);
  void add_to_sum();
  void reduce_whole();
  void average_own();

  Engine& engine_;
  const FlatLayout& layout_;
  Shard owned_;
  bool own_only_;  ///< of an ignored module: this rank's mean over its micro-steps
  bool kept_whole_;
  std::vector<bool> written_;      ///< of each parameter
  std::byte* target_ = nullptr;    ///< where the program writes: one of the next two
  device::MemoryPtr scratch_;      ///< in the view dtype, where that is not written to the buffer
  collectives::BufferPtr buffer_;  ///< what the peers read
  device::MemoryPtr unreduced_;  ///< float32 sum under no_sync, where the view is of another dtype
  collectives::BufferPtr shard_;
  device::MemoryPtr host_;  ///< the reduced gradient, where the optimizer is offloaded
  collectives::WorkPtr reduction_;
  bool accumulated_ = false;
  bool sum_begun_ = false;     ///< the float32 sum holds earlier micro-steps
  bool waits_ = false;         ///< whole gradients of no_sync wait for a reduction
  device::MemoryPtr squares_;  ///< a double a micro-step, of this rank's own gradient
  std::vector<std::int64_t> closed_;
};

}  // namespace acc::sharding
