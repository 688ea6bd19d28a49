// SPDX-License-Identifier: Apache-2.0
#include "sharding/flat_gradient.hpp"

#include "sharding/gradient/variants.hpp"
#include "trace/tracer.hpp"

#include <algorithm>

namespace acc::sharding {

FlatGradient::FlatGradient(const Context& context, Pools& pools, Counters& counters,
                           const FlatLayout& layout, Shard owned)
    : context_(context),
      pools_(pools),
      counters_(counters),
      layout_(layout),
      scaling_(scaling()),
      written_(context, pools.scratch, layout) {
  if (context_.offload_optimizer()) {
    host_ = context_.allocate_working(owned.numel, "gradients");
  }
  if (context_.watches_gradients()) {
    watch_.emplace(context, pools.scratch, layout);
  }
}

GradientScaling FlatGradient::scaling() const {
  return scale_gradients(
      context_.settings.identity.world_size, context_.settings.sharding.micro_steps(),
      context_.on.shard_gradients ? layout_.precision.reduced : layout_.precision.reduced_whole);
}

void FlatGradient::open() {
  if (!written_.is_open()) {
    choose_memory();
  }
}

FlatGradient::Target FlatGradient::target(std::size_t index) {
  open();
  return written_.target(index);
}

void FlatGradient::close(bool last) {
  if (!wanted_ && !begun_) {
    return;
  }
  begun_ = true;
  if (watch_) {
    watch_->record(written_, counters_.gradients_closed, counters_.uses.micro_steps);
  }
  ++counters_.gradients_closed;
  end_micro_step(last);
}

void FlatGradient::add_to(float* sum, bool accumulate) {
  open();
  written_.zero_unwritten();
  context_.device->add_scaled(written_.data(), layout_.precision.viewed, sum,
                              static_cast<std::size_t>(layout_.padded_numel), 1.0F, accumulate,
                              context_.device->compute());
  written_.close();
}

void FlatGradient::wait_reduction() {
  if (reduction_) {
    const trace::Scope scope(context_.tracer.get(), "wait", "for the reduction of", layout_.unit);
    reduction_->wait_released();
    reduction_.reset();
  }
}

void FlatGradient::set_aside(const float* reduced, std::int64_t numel) {
  wait_reduction();
  const bool adds = aside_ != nullptr;
  if (!aside_) {
    aside_numel_ = static_cast<std::size_t>(numel);
    aside_ = context_.device->allocate(aside_numel_ * sizeof(float), "gradients");
  }
  context_.device->add_scaled(reduced, DType::float32, aside_->as<float>(), aside_numel_, 1.0F,
                              adds, context_.device->compute());
}

void FlatGradient::add_set_aside(float* reduced) {
  if (aside_) {
    context_.device->add_scaled(aside_->data(), DType::float32, reduced, aside_numel_, 1.0F, true,
                                context_.device->compute());
    aside_.reset();
  }
}

void FlatGradient::drop() {
  if (held_) {
    return;
  }
  wait_reduction();
  discard();
  forget();
}

void FlatGradient::renew() {
  reduction_.reset();
  discard();
  forget();
  scaling_ = scaling();
  renew_memory();
}

void FlatGradient::forget() {
  written_.forget();
  begun_ = false;
  aside_.reset();
  if (watch_) {
    watch_->forget();
  }
}

std::unique_ptr<FlatGradient> make_flat_gradient(const Context& context, Pools& pools,
                                                 Counters& counters, const FlatLayout& layout,
                                                 Shard owned, const FlatTraits& traits) {
  return context.on.shard_gradients && !traits.ignored
             ? make_sharded_gradient(context, pools, counters, layout, owned)
             : make_whole_gradient(context, pools, counters, layout, owned, traits.ignored);
}

}  // namespace acc::sharding
