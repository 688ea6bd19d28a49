#pragma once

#include "sharding/engine.hpp"
#include "sharding/flat_plan.hpp"
#include "sharding/shard_layout.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace acc::sharding {

/// The gradient of a flat parameter: the memory that the program writes, the reduction over ranks,
/// and the reduced gradient that is kept until the step. Each step goes through this cycle:
///
///     target() …  close()  target() …  close(last)  flush()  reduced()  forget()
///     `--- micro-step ---' `--- micro-step ------'   `---- step ----------------'
///
/// Two life cycles, chosen in the constructor:
/// - whole (strategies that do not shard gradients, and ignored parameters): `buffer_`,
///   [padded_numel] float32, exists as long as the object and accumulates all micro-steps. The last
///   one, or `flush`, reduces it in place: all_reduce (NO_SHARD), reduce_scatter into this rank's
///   slice (ZeRO 1), or no communication for an ignored parameter.
/// - sharded: each micro-step acquires a pooled buffer, reduce_scatters it and adds the result to
///   `shard_`, [shard_numel] float32. The pool gets the buffer back when all peers have read it.
///   Under no_sync a micro-step is not reduced: the whole gradient is kept in float32 until the
///   next micro-step outside, or `flush`, reduces the sum. Hybrid strategies all_reduce `shard_`
///   over the replicas once per step.
///
/// Dtypes: the program writes in the view dtype and gradients are sent in the reduced dtype
/// (precision::PrecisionPolicy). If both are equal the program writes directly into the buffer that
/// peers read; else into scratch memory that is cast. Sums are float32. With an offloaded optimizer
/// the reduced gradient is copied to host memory (`host_`).
///
/// Order: a sum over micro-steps runs in the order of the micro-steps, a sum over ranks in rank
/// order, so that two runs of the same layout give bitwise equal gradients.
class FlatGradient {
 public:
  /// owned: the part that this rank's optimizer updates. layout: outlives this object.
  FlatGradient(Engine& engine, const FlatLayout& layout, Shard owned, FlatTraits traits);

  struct Target {
    void* data;
    bool written;
  };
  /// Returns the memory for the full gradient of parameter `index`, [numel] in the view dtype, and
  /// whether it was written before (then the program adds). Marks it as written.
  Target target(std::size_t index);
  /// Ends a micro-step. Sharded gradients are reduced to the shard; whole ones are reduced if
  /// `last`; under no_sync neither is.
  void close(bool last);
  /// Reduces before a step what no micro-step has reduced, also a gradient that was never written:
  /// all ranks must issue the same reductions.
  void flush();
  /// Starts the all_reduce of the shard over the replicas; after the reduction within the shard
  /// group. `wait_reduction` then waits for it.
  void all_reduce_replicas();
  /// Offloaded optimizer: copies a whole gradient's owned part to host memory. Sharded gradients
  /// are copied by GradientOffload after each reduction.
  void bring();

  /// The reduced gradient of `owned`, [owned.numel] float32, in memory of the updater. Valid after
  /// the reductions have been waited for.
  [[nodiscard]] float* reduced() const;
  void wait_reduction();
  /// Starts the next step: the gradients count as not written. Memory is kept.
  void forget();
  /// Bytes of reduced or accumulated gradients (MemoryReport::gradient_bytes).
  [[nodiscard]] std::int64_t held_nbytes() const;

  /// The micro-steps since the last step, each as its number in `Engine::gradients_closed`.
  /// Recorded only if `Engine::watches_gradients()`.
  [[nodiscard]] const std::vector<std::int64_t>& closed() const noexcept { return closed_; }
  /// The first of `closed()` in which this rank's own gradient, before the reduction, was not
  /// finite. Waits for the device.
  [[nodiscard]] std::optional<std::int64_t> first_non_finite() const;

 private:
  void allocate();
  /// Sets `target_` for the micro-step; does nothing if it is set.
  void open();
  [[nodiscard]] bool is_open() const noexcept { return target_ != nullptr; }
  /// True if the program writes directly into `buffer_`, which peers read.
  [[nodiscard]] bool writes_to_buffer() const;
  void watch();
  /// Accumulates the micro-step and, if `reduces`, starts the reduction.
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
  bool own_only_;    ///< ignored module: the mean over this rank's micro-steps, not over ranks
  bool kept_whole_;  ///< the life cycle: whole, else sharded
  std::vector<bool> written_;      ///< by parameter: the next write adds
  std::byte* target_ = nullptr;    ///< memory that the program writes: one of the next two
  device::MemoryPtr scratch_;      ///< view dtype; null if the program writes into `buffer_`
  collectives::BufferPtr buffer_;  ///< memory that peers read; pooled if sharded
  device::MemoryPtr unreduced_;    ///< float32 sum under no_sync, if the view dtype is another
  collectives::BufferPtr shard_;   ///< sharded: the reduced gradient
  device::MemoryPtr host_;         ///< offloaded optimizer: the reduced gradient
  collectives::WorkPtr reduction_;
  bool accumulated_ = false;   ///< a reduction of this step has been issued
  bool sum_begun_ = false;     ///< the float32 sum contains earlier micro-steps
  bool waits_ = false;         ///< sharded: whole gradients of no_sync await their reduction
  device::MemoryPtr squares_;  ///< one double per micro-step: squared norm of this rank's gradient
  std::vector<std::int64_t> closed_;
};

}  // namespace acc::sharding
