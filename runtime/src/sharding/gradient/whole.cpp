// SPDX-License-Identifier: Apache-2.0
#include "sharding/gradient/accumulation.hpp"
#include "sharding/gradient/variants.hpp"

namespace acc::sharding {
namespace {

/// One buffer, [padded_numel] float32, exists as long as the object and accumulates all
/// micro-steps. The last one, or `flush`, reduces it (a later one once more): all_reduce in place
/// (NO_SHARD), reduce_scatter into this rank's slice (ZeRO 1; of a rounded copy if `reduced_whole`
/// has 16 bits), or no communication for an ignored parameter.
class WholeGradient final : public FlatGradient {
 public:
  WholeGradient(const Context& context, Pools& pools, Counters& counters, const FlatLayout& layout,
                Shard owned, bool own_only)
      : FlatGradient(context, pools, counters, layout, owned),
        owned_(owned),
        own_only_(own_only),
        buffer_(context.groups.world->allocate_contribution(
            static_cast<std::size_t>(layout.padded_numel) * sizeof(float))) {}

  void finish() override {
    add_set_aside(own_part());
    if (host_) {
      context_.device->copy(host_->data(), own_part(),
                            static_cast<std::size_t>(owned_.numel) * sizeof(float),
                            context_.device->compute());
    }
  }

  float* reduced() const override { return host_ ? host_->as<float>() : own_part(); }

  void forget() override {
    FlatGradient::forget();
    state_ = State::empty;
  }

  std::int64_t held_nbytes() const override {
    return static_cast<std::int64_t>(host_ ? host_->nbytes() : buffer_->nbytes());
  }

 private:
  [[nodiscard]] float* own_part() const { return buffer_->as<float>() + owned_.offset; }

  void choose_memory() override {
    context_.groups.world->progress();  // the backward calls this regularly, as in GradientPool
    if (state_ == State::reduced) {
      set_aside(own_part(), owned_.numel);
      state_ = State::empty;
    }
    if (program_adds(layout_.precision)) {
      written_.open(buffer_->data());
    } else {
      written_.open_scratch();
    }
  }

  void end_micro_step(bool last) override { end(last && !accumulates()); }
  /// Left over are unfinished micro-steps, those of no_sync, and units that the step did not use.
  void reduce_rest() override {
    if (state_ != State::reduced) {
      end(true);
    }
  }

  void discard() override { written_.close(); }
  void renew_memory() override { buffer_ = context_.groups.world->renew(buffer_); }

  void end(bool reduces) {
    if (!program_adds(layout_.precision)) {
      open();  // before `state_` is read
      add_to(buffer_->as<float>(), state_ == State::summed);
      state_ = State::summed;
    } else if (reduces) {
      open();
      written_.zero_unwritten();
      written_.close();
    }
    if (reduces) {
      state_ = State::reduced;
      own_only_ ? average_own() : reduce();
    }
  }

  void reduce() {
    auto& world = *context_.groups.world;
    auto& device = *context_.device;
    float* const full = buffer_->as<float>();
    const auto numel = static_cast<std::size_t>(layout_.padded_numel);
    const DType dtype = layout_.precision.reduced_whole;
    const GradientScaling& mean = scaling_;
    if (mean.before != 1.0F) {
      device.add_scaled(full, DType::float32, full, numel, mean.before, false, device.compute());
    }
    if (context_.on.shard_optimizer) {
      collectives::BufferPtr rounded;
      if (dtype != DType::float32) {
        rounded = pools_.gradients.acquire(numel * nbytes_of(dtype));
        device.cast(full, DType::float32, rounded->data(), dtype, numel, device.compute());
      }
      reduction_ = world.reduce_scatter(rounded ? rounded->data() : buffer_->data(), own_part(),
                                        static_cast<std::size_t>(layout_.shard_numel), dtype,
                                        {.scale = mean.after, .code = context_.codes.gradients});
      if (rounded) {
        pools_.gradients.in_flight(std::move(rounded), reduction_, layout_.unit, nullptr);
      }
      counters_.traffic.reduced_elements += layout_.numel;
      counters_.traffic.reduce_calls += 1;
    } else {
      reduction_ = world.all_reduce_coded(full, numel, dtype, mean.after,
                                          context_.codes.gradients_of_copies);
      counters_.traffic.all_reduced_elements += layout_.numel;
      counters_.traffic.all_reduce_calls += 1;
    }
    world.progress();
    if (!context_.overlaps()) {
      wait_reduction();
    }
  }

  /// Turns the sum over this rank's micro-steps into their mean. The factors of the mean also
  /// divide by the number of ranks, whose gradients are not in this sum; the multiplication undoes
  /// that.
  void average_own() {
    float* const full = buffer_->as<float>();
    const auto ranks = static_cast<float>(context_.groups.world->size());
    const GradientScaling& mean = scaling_;
    context_.device->add_scaled(
        full, DType::float32, full, static_cast<std::size_t>(layout_.padded_numel),
        mean.before * mean.after * ranks, false, context_.device->compute());
  }

  enum class State {
    empty,   ///< no separate sum, although the program may have written the buffer
    summed,  ///< the buffer contains the micro-steps so far (only if the program does not add)
    reduced
  };

  Shard owned_;
  bool own_only_;
  collectives::BufferPtr buffer_;
  State state_ = State::empty;
};

}  // namespace

std::unique_ptr<FlatGradient> make_whole_gradient(const Context& context, Pools& pools,
                                                  Counters& counters, const FlatLayout& layout,
                                                  Shard owned, bool own_only) {
  return std::make_unique<WholeGradient>(context, pools, counters, layout, owned, own_only);
}

}  // namespace acc::sharding
