// SPDX-License-Identifier: Apache-2.0
#include "sharding/gradient/accumulation.hpp"
#include "sharding/gradient/variants.hpp"
#include "sharding/gradient_offload.hpp"

#include <functional>
#include <utility>

namespace acc::sharding {
namespace {

/// Each micro-step acquires a pooled buffer, reduce_scatters it and adds the result to the shard.
/// The pool gets the buffer back when all peers have read it. Hybrid strategies all_reduce the
/// shard over the replicas once per step or, with an offloaded optimizer, in each micro-step. On a
/// GPU this is issued in the last micro-step, behind the reduce_scatter, so that it runs next to
/// the backward of further units. On the CPU a collective proceeds only in waits, so it comes with
/// the step.
class ShardedGradient final : public FlatGradient {
 public:
  ShardedGradient(const Context& context, Pools& pools, Counters& counters,
                  const FlatLayout& layout, Shard owned)
      : FlatGradient(context, pools, counters, layout, owned) {
    // The shard is an input of the all_reduce over replicas, so its readers are the replicas. Ranks
    // that share memory (only on the CPU) write a sum anywhere; others may need memory of the
    // group.
    const auto& ranks = *context.groups.shard;
    if (context.gradients_in_file()) {
      host_ = context.allocate_state(layout.shard_numel, "gradients");
    }
    is_private_ =
        !host_ && !context.groups.replicate && ranks.shares_gathered_memory() && ranks.size() > 1;
    if (!host_ && !is_private_) {
      auto& group = context.groups.replicate ? *context.groups.replicate : *context.groups.shard;
      shard_ = group.allocate_contribution(shard_nbytes());
    }
  }

  void all_reduce_replicas() override {
    if (shard_ && !replicas_summed_) {
      reduction_ = all_reduce_replicas(shard_->as<float>());
    }
  }

  void finish() override {
    if (shard_) {
      add_set_aside(shard_->as<float>());
    }
  }

  float* reduced() const override {
    return host_ ? host_->as<float>() : own_ ? own_->as<float>() : shard_->as<float>();
  }

  device::MemoryPtr give_reduced() override {
    reduced_before_ = reduced_before_ && !own_;
    return std::move(own_);
  }

  void forget() override {
    FlatGradient::forget();
    reduced_before_ = false;
    replicas_summed_ = false;
    own_.reset();
  }

  std::int64_t held_nbytes() const override {
    const std::int64_t whole =
        awaits_reduction_ ? layout_.padded_numel * static_cast<std::int64_t>(sizeof(float)) : 0;
    const bool in_file = host_ && context_.in_file(host_->data());
    return whole + (in_file ? 0 : static_cast<std::int64_t>(shard_nbytes()));
  }

 private:
  [[nodiscard]] std::size_t shard_nbytes() const {
    return static_cast<std::size_t>(layout_.shard_numel) * sizeof(float);
  }

  void choose_memory() override {
    const DType viewed = layout_.precision.viewed;
    if (writes_contribution(layout_.precision, unreduced_ || accumulates())) {
      buffer_ = pools_.gradients.acquire(static_cast<std::size_t>(layout_.padded_numel) *
                                         nbytes_of(viewed));
      written_.open(buffer_->data());
    } else {
      written_.open_scratch();
    }
  }

  void end_micro_step(bool last) override {
    if (!accumulates()) {
      reduce();
      if (last && shard_ && context_.groups.replicate) {
        all_reduce_behind_reduction();
      }
      return;
    }
    awaits_reduction_ = true;
    if (!program_adds(layout_.precision)) {
      add_to_unreduced();
    }
  }

  /// Left over are unfinished micro-steps, sums of no_sync, and units that the step did not use.
  /// The last send zeros, because their peers issue the reduction as well. All ranks open the same
  /// scopes, so the condition has the same value on all of them.
  void reduce_rest() override {
    if (written_.is_open() || awaits_reduction_ || !reduced_before_) {
      reduce();
    }
  }

  void discard() override {
    written_.close();
    if (buffer_) {
      pools_.gradients.release(std::move(buffer_));
    }
    if (unreduced_) {
      pools_.sums.release(std::move(unreduced_));
    }
    awaits_reduction_ = false;
  }

  void renew_memory() override {
    if (shard_) {
      auto& group = context_.groups.replicate ? *context_.groups.replicate : *context_.groups.shard;
      shard_ = group.renew(shard_);
    }
  }

  void add_to_unreduced() {
    const bool accumulate = unreduced_ != nullptr;
    if (!unreduced_) {
      unreduced_ =
          pools_.sums.acquire(static_cast<std::size_t>(layout_.padded_numel) * sizeof(float));
    }
    add_to(unreduced_->as<float>(), accumulate);
  }

  /// Sends the whole gradient into the reduce_scatter of the shard group. All ranks reach this for
  /// the same flat parameters in the same order, because they end the same micro-steps in the same
  /// order.
  void reduce() {
    if (unreduced_) {  // earlier micro-steps under no_sync
      add_to_unreduced();
      contribute(unreduced_->data(), DType::float32);
      pools_.sums.release(std::move(unreduced_));
    } else {
      open();  // a unit whose backward wrote nothing still takes part in the reduction
      written_.zero_unwritten();
      contribute(written_.data(), layout_.precision.viewed);
      written_.close();
    }
    awaits_reduction_ = false;
    if (replicas_summed_) {
      set_aside(shard_->as<float>(), layout_.shard_numel);
      replicas_summed_ = false;
      reduced_before_ = false;
    }
    device::MemoryPtr offloaded;
    if (host_) {
      offloaded = pools_.gradient_offload->acquire(layout_.shard_numel);
    }
    if (is_private_ && !own_) {
      own_ = context_.device->allocate(shard_nbytes(), "gradients");
    }
    const bool adds = reduced_before_;
    reduced_before_ = true;
    auto& group = *context_.groups.shard;
    reduction_ = group.reduce_scatter(
        buffer_->data(), offloaded ? offloaded->as<float>() : reduced(),
        static_cast<std::size_t>(layout_.shard_numel), layout_.precision.reduced,
        {.scale = scaling_.after,
         .accumulate = adds && !offloaded,
         .code = context_.codes.gradients});
    std::function<void()> reduced;
    if (offloaded && reduction_->done()) {
      offload(offloaded, reduction_->done(), adds);
    } else if (offloaded) {
      reduced = [this, offloaded, adds] { offload(offloaded, nullptr, adds); };
    }
    pools_.gradients.in_flight(std::move(buffer_), reduction_, layout_.unit, std::move(reduced));
    counters_.traffic.reduced_elements += layout_.numel;
    counters_.traffic.reduce_calls += 1;
    group.progress();
  }

  /// Puts this rank's whole gradient into `buffer_`, which peers read: scaled by the part of the
  /// mean that precedes the sum, and in the reduced dtype. Does nothing if the program wrote it
  /// there. from: [padded_numel] of `dtype`.
  void contribute(std::byte* from, DType dtype) {
    device::Device& device = *context_.device;
    const auto numel = static_cast<std::size_t>(layout_.padded_numel);
    const DType reduced = layout_.precision.reduced;
    if (!buffer_) {
      buffer_ = pools_.gradients.acquire(numel * nbytes_of(reduced));
    }
    const float scale = scaling_.before;
    device::MemoryPtr widened;
    if (scale != 1.0F) {
      if (dtype != DType::float32) {
        widened = pools_.scratch.acquire(numel * sizeof(float));
      }
      std::byte* const scaled = widened ? widened->data() : from;
      device.add_scaled(from, dtype, reinterpret_cast<float*>(scaled), numel, scale, false,
                        device.compute());
      from = scaled;
      dtype = DType::float32;
    }
    if (from != buffer_->data()) {
      device.cast(from, dtype, buffer_->data(), reduced, numel, device.compute());
    }
    if (widened) {
      pools_.scratch.release(std::move(widened));
    }
  }

  /// Replicas are summed on the GPU, in every micro-step, because the sum over micro-steps is in
  /// host memory. ready: end of the reduction; null: the compute stream is behind it.
  void offload(const device::MemoryPtr& reduced, device::EventPtr ready, bool adds) {
    if (context_.groups.replicate) {
      if (ready) {
        context_.groups.replicate->after(ready);
      }
      const auto summed = all_reduce_replicas(reduced->as<float>());
      ready = ready ? summed->done() : nullptr;
      if (!ready) {
        summed->wait_released();
      }
    }
    pools_.gradient_offload->bring(reduced, ready, host_->as<float>(), layout_.shard_numel, adds);
  }

  void all_reduce_behind_reduction() {
    if (const device::EventPtr reduced = reduction_->done()) {
      context_.groups.replicate->after(reduced);
      reduction_ = all_reduce_replicas(shard_->as<float>());
      replicas_summed_ = true;
    }
  }

  collectives::WorkPtr all_reduce_replicas(float* shard) {
    counters_.traffic.all_reduced_elements += layout_.shard_numel;
    counters_.traffic.all_reduce_calls += 1;
    return context_.groups.replicate->all_reduce_coded(
        shard, static_cast<std::size_t>(layout_.shard_numel), layout_.precision.reduced, 1.0F,
        context_.codes.gradients_of_copies);
  }

  collectives::BufferPtr buffer_;  ///< pooled memory that peers read; null if not needed yet
  device::MemoryPtr unreduced_;    ///< sum of no_sync, if the program does not add; else null
  bool is_private_ = false;        ///< the reduced gradient lies in `own_`
  device::MemoryPtr own_;          ///< from the first reduction of a step to its end; else null
  collectives::BufferPtr shard_;   ///< the reduced gradient; null if private or offloaded
  bool awaits_reduction_ = false;  ///< micro-steps of no_sync are not in the reduced gradient yet
  bool replicas_summed_ = false;   ///< the all_reduce over replicas has been issued
  bool reduced_before_ = false;    ///< the reduced gradient contains micro-steps of this step
};

}  // namespace

std::unique_ptr<FlatGradient> make_sharded_gradient(const Context& context, Pools& pools,
                                                    Counters& counters, const FlatLayout& layout,
                                                    Shard owned) {
  return std::make_unique<ShardedGradient>(context, pools, counters, layout, owned);
}

}  // namespace acc::sharding
