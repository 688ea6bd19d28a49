// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/context.hpp"
#include "sharding/flat_plan.hpp"
#include "sharding/gradient/gradient_watch.hpp"
#include "sharding/gradient/written_gradient.hpp"
#include "sharding/pools.hpp"
#include "sharding/shard_layout.hpp"

#include <cstdint>
#include <memory>
#include <optional>

namespace acc::sharding {

/// The gradient of a flat parameter: the memory that the program writes, the reduction over ranks,
/// and the reduced gradient that is kept until the step. Each step goes through this cycle:
///
///     target() …  close()  target() …  close(last)  flush()  finish()  reduced()  forget()
///     `--- micro-step ---' `--- micro-step ------'   `---- step ----------------------'
///
/// A gradient that comes after `close(last)` (a second backward of a forward) is reduced again:
/// what is reduced for all ranks already is set aside, and `finish` adds it.
///
/// Two implementations:
/// - whole (strategies that do not shard gradients, and ignored parameters): the gradient is kept
///   whole and reduced in place once per step;
/// - sharded: the gradient is whole in a pooled buffer until it is reduced to this rank's shard, in
///   each micro-step.
/// The rules of accumulation over micro-steps are in gradient/accumulation.hpp. A sum over ranks
/// runs in rank order, so that two runs of the same layout give bitwise equal gradients.
///
/// Dtypes: the program writes in the view dtype and gradients are sent in the reduced dtype
/// (PrecisionPolicy); the reduced gradient is float32.
class FlatGradient {
 public:
  virtual ~FlatGradient() = default;
  FlatGradient(const FlatGradient&) = delete;
  FlatGradient& operator=(const FlatGradient&) = delete;

  /// Chooses the memory of a gradient that the running backward may write, which may allocate
  /// collectively: also of one that is held, which some ranks may not write.
  void prepare() {
    if (held_ ? wanted_ : is_due()) {
      open();
    }
  }
  using Target = WrittenGradient::Target;
  /// Returns the memory for the full gradient of parameter `index`, [numel] in the view dtype, and
  /// whether it was written before (then the program adds). Marks it as written.
  Target target(std::size_t index);
  /// Ends a backward, which may have written a gradient that is wanted. The micro-step may go on.
  void end_backward() noexcept { begun_ = begun_ || wanted_; }
  /// Ends a micro-step; `last`: the last one of the step.
  void close(bool last);
  /// wanted: false while the program trains without this gradient, the same on all ranks.
  /// Micro-steps then reduce nothing.
  void want(bool wanted) noexcept { wanted_ = wanted; }
  /// held: true, the same on all ranks, keeps the sum over micro-steps whole, also over a step,
  /// until it is false.
  void hold(bool held) noexcept { held_ = held; }
  /// False if the next step has no gradient of this flat parameter: `reduced` has no value.
  [[nodiscard]] bool is_due() const noexcept { return !held_ && (wanted_ || begun_); }
  /// Reduces before a step what no micro-step has reduced, also a gradient that was never written:
  /// all ranks must issue the same reductions.
  void flush() {
    if (is_due()) {
      reduce_rest();
    }
  }
  /// Sharded: starts the all_reduce of the shard over the replicas, after the reduction within the
  /// shard group, unless the last micro-step has. `wait_reduction` then waits for it.
  virtual void all_reduce_replicas() {}
  /// After the reductions have been waited for: adds what was set aside, and copies a whole
  /// gradient's owned part to the host memory of an offloaded optimizer. Sharded gradients are
  /// copied by GradientOffload after each reduction.
  virtual void finish() = 0;

  /// The reduced gradient of the part that this rank's optimizer updates, [owned numel] float32, in
  /// memory of the updater. Valid after the reductions have been waited for.
  [[nodiscard]] virtual float* reduced() const = 0;
  /// Passes the memory of `reduced` on to the caller; null: it stays here, and is used again.
  [[nodiscard]] virtual device::MemoryPtr give_reduced() { return nullptr; }
  void wait_reduction();
  /// Starts the next step: the gradients count as not written. Memory is kept.
  virtual void forget();
  /// The same in place of a step, after the reductions under way, unless it is held.
  void drop();
  /// As WeightStorage::renew: there are no gradients. Collective.
  void renew();
  /// Bytes of reduced or accumulated gradients (MemoryReport::gradient_bytes).
  [[nodiscard]] virtual std::int64_t held_nbytes() const = 0;

  /// Null unless `Context::watches_gradients()`.
  [[nodiscard]] const GradientWatch* watch() const noexcept { return watch_ ? &*watch_ : nullptr; }

 protected:
  /// Allocates `host_`. owned: the part that this rank's optimizer updates. All other arguments
  /// outlive this object.
  FlatGradient(const Context& context, Pools& pools, Counters& counters, const FlatLayout& layout,
               Shard owned);
  /// Opens `written_` for the micro-step; does nothing if it is open.
  void open();
  /// Adds the micro-step to `sum`, [padded_numel] float32, or overwrites it. Closes `written_`.
  void add_to(float* sum, bool accumulate);
  /// Waits for the reduction and sets its result aside, memory of the device: [numel] at `reduced`.
  void set_aside(const float* reduced, std::int64_t numel);
  /// Adds what was set aside to `reduced`.
  void add_set_aside(float* reduced);
  /// True if micro-steps are not reduced when they end.
  [[nodiscard]] bool accumulates() const noexcept { return held_ || counters_.no_sync_depth > 0; }

  const Context& context_;
  Pools& pools_;
  Counters& counters_;
  const FlatLayout& layout_;
  GradientScaling scaling_;
  WrittenGradient written_;
  device::MemoryPtr host_;  ///< offloaded: the reduced gradient, maybe in a file; else null
  collectives::WorkPtr reduction_;

 private:
  [[nodiscard]] GradientScaling scaling() const;
  /// Opens `written_`.
  virtual void choose_memory() = 0;
  virtual void end_micro_step(bool last) = 0;
  virtual void reduce_rest() = 0;
  /// Gives back pooled memory of gradients that are not reduced.
  virtual void discard() = 0;
  /// Takes the group's memory anew. Collective.
  virtual void renew_memory() = 0;

  std::optional<GradientWatch> watch_;
  bool wanted_ = true;
  bool held_ = false;
  bool begun_ = false;       ///< a backward of a wanted gradient has ended since the last step
  device::MemoryPtr aside_;  ///< result of an earlier reduction of this step; null: none
  std::size_t aside_numel_ = 0;
};

/// Chooses the implementation for the strategy and the traits. All arguments except `owned` and
/// `traits` outlive the gradient. Collective.
std::unique_ptr<FlatGradient> make_flat_gradient(const Context& context, Pools& pools,
                                                 Counters& counters, const FlatLayout& layout,
                                                 Shard owned, const FlatTraits& traits);

}  // namespace acc::sharding
