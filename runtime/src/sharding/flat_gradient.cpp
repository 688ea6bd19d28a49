#include "sharding/flat_gradient.hpp"

#include "sharding/gradient_offload.hpp"

#include <algorithm>
#include <functional>

namespace acc::sharding {

FlatGradient::FlatGradient(Engine& engine, const FlatLayout& layout, Shard owned, FlatTraits traits)
    : engine_(engine),
      layout_(layout),
      owned_(owned),
      own_only_(traits.ignored),
      kept_whole_(!engine.on.shard_gradients || own_only_),
      written_(layout.numels.size(), false) {
  allocate();
}

void FlatGradient::allocate() {
  if (engine_.offload_optimizer()) {
    host_ = engine_.allocate_state(owned_.numel, "gradients");
  }
  if (kept_whole_) {
    buffer_ = engine_.groups.world->allocate_contribution(
        static_cast<std::size_t>(layout_.padded_numel) * sizeof(float));
  } else if (!engine_.offload_optimizer()) {
    auto& group = engine_.groups.replicate ? *engine_.groups.replicate : *engine_.groups.shard;
    shard_ =
        group.allocate_contribution(static_cast<std::size_t>(layout_.shard_numel) * sizeof(float));
  }
}

void FlatGradient::open() {
  if (is_open()) {
    return;
  }
  const auto numel = static_cast<std::size_t>(layout_.padded_numel);
  if (!kept_whole_) {
    buffer_ = engine_.gradients->acquire(numel * nbytes_of(engine_.precision.reduced));
  }
  const DType reduced_in = kept_whole_ ? DType::float32 : engine_.precision.reduced;
  if (engine_.precision.viewed != reduced_in) {
    scratch_ = engine_.scratch->acquire(numel * nbytes_of(engine_.precision.viewed));
  }
  target_ = scratch_ ? scratch_->data() : buffer_->data();
}

FlatGradient::Target FlatGradient::target(std::size_t index) {
  open();
  const auto offset = static_cast<std::size_t>(layout_.offsets[index]);
  const Target target{target_ + offset * nbytes_of(engine_.precision.viewed), written_[index]};
  written_[index] = true;
  return target;
}

void FlatGradient::zero_unwritten() {
  const std::size_t width = nbytes_of(engine_.precision.viewed);
  const auto zero = [&](std::int64_t begin, std::int64_t end) {
    if (begin < end) {
      engine_.device->zero(target_ + static_cast<std::size_t>(begin) * width,
                           static_cast<std::size_t>(end - begin) * width,
                           engine_.device->compute());
    }
  };
  std::int64_t end = 0;
  for (std::size_t i = 0; i < layout_.numels.size(); ++i) {
    zero(end, layout_.offsets[i]);  // the gap before it
    end = layout_.offsets[i] + layout_.numels[i];
    if (!written_[i]) {
      zero(layout_.offsets[i], end);
    }
  }
  zero(end, layout_.padded_numel);
  std::fill(written_.begin(), written_.end(), false);
}

void FlatGradient::close(bool last) {
  if (!kept_whole_) {
    open();  // a unit whose backward wrote nothing still takes part in the reduction
    reduce_to_shard();
    return;
  }
  if (engine_.precision.viewed != DType::float32) {
    add_to_whole();
  }
  if (last) {
    reduce_whole();
  }
}

void FlatGradient::reduce_to_shard() {
  zero_unwritten();
  device::Device& device = *engine_.device;
  if (scratch_) {
    device.cast(scratch_->data(), engine_.precision.viewed, buffer_->data(),
                engine_.precision.reduced, static_cast<std::size_t>(layout_.padded_numel),
                device.compute());
    engine_.scratch->release(std::move(scratch_));
  }
  target_ = nullptr;
  device::MemoryPtr offloaded;
  if (engine_.offload_optimizer()) {
    offloaded = engine_.gradient_offload->acquire(layout_.shard_numel);
  }
  const bool accumulate = accumulated_ && !offloaded;
  reduction_ = engine_.groups.shard->reduce_scatter(
      buffer_->data(), offloaded ? offloaded->as<float>() : shard_->as<float>(),
      static_cast<std::size_t>(layout_.shard_numel), engine_.precision.reduced,
      {.scale = engine_.gradient_scale, .accumulate = accumulate});
  std::function<void()> reduced;
  if (offloaded) {
    reduced = [this, offloaded, adds = accumulated_] { offload(offloaded, adds); };
  }
  accumulated_ = true;
  engine_.gradients->in_flight(std::move(buffer_), reduction_, std::move(reduced));
  engine_.traffic.reduced_elements += layout_.numel;
  engine_.traffic.reduce_calls += 1;
  engine_.groups.shard->progress();
}

void FlatGradient::offload(const device::MemoryPtr& reduced, bool accumulate) {
  if (engine_.groups.replicate) {
    all_reduce_replicas(reduced->as<float>())->wait_released();
  }
  engine_.gradient_offload->bring(reduced, host_->as<float>(), layout_.shard_numel, accumulate);
}

/// Gradients that are kept whole are accumulated in float32 over the micro-steps.
void FlatGradient::add_to_whole() {
  open();
  zero_unwritten();
  engine_.device->add_scaled(scratch_->data(), engine_.precision.viewed, buffer_->as<float>(),
                             static_cast<std::size_t>(layout_.padded_numel), 1.0F, whole_begun_,
                             engine_.device->compute());
  engine_.scratch->release(std::move(scratch_));
  whole_begun_ = true;
  target_ = nullptr;
}

void FlatGradient::reduce_whole() {
  if (!whole_begun_) {
    open();
    zero_unwritten();
  }
  accumulated_ = true;
  target_ = nullptr;
  if (own_only_) {
    average_own();
    return;
  }
  float* const full = buffer_->as<float>();
  auto& world = *engine_.groups.world;
  if (engine_.on.shard_optimizer) {
    reduction_ = world.reduce_scatter(full, full + owned_.offset,
                                      static_cast<std::size_t>(layout_.shard_numel), DType::float32,
                                      {.scale = engine_.gradient_scale});
    engine_.traffic.reduced_elements += layout_.numel;
    engine_.traffic.reduce_calls += 1;
  } else {
    reduction_ = world.all_reduce(full, static_cast<std::size_t>(layout_.padded_numel),
                                  engine_.gradient_scale);
    engine_.traffic.all_reduced_elements += layout_.numel;
    engine_.traffic.all_reduce_calls += 1;
  }
  world.progress();
  if (!engine_.settings.sharding.overlap_comm) {
    wait_reduction();
  }
}

/// Nobody else's gradients are in it, so that the share of the other ranks in the scale goes.
void FlatGradient::average_own() {
  float* const full = buffer_->as<float>();
  const auto ranks = static_cast<float>(engine_.groups.world->size());
  engine_.device->add_scaled(full, DType::float32, full,
                             static_cast<std::size_t>(layout_.padded_numel),
                             engine_.gradient_scale * ranks, false, engine_.device->compute());
}

void FlatGradient::flush() {
  if (kept_whole_ ? !accumulated_ : is_open() || !accumulated_) {
    close(true);
  }
}

void FlatGradient::all_reduce_replicas() {
  if (shard_) {
    reduction_ = all_reduce_replicas(shard_->as<float>());
  }
}

collectives::WorkPtr FlatGradient::all_reduce_replicas(float* shard) {
  engine_.traffic.all_reduced_elements += layout_.shard_numel;
  engine_.traffic.all_reduce_calls += 1;
  return engine_.groups.replicate->all_reduce(shard, static_cast<std::size_t>(layout_.shard_numel),
                                              1.0F);
}

void FlatGradient::bring() {
  if (host_ && kept_whole_) {
    engine_.device->copy(host_->data(), buffer_->as<float>() + owned_.offset,
                         static_cast<std::size_t>(owned_.numel) * sizeof(float),
                         engine_.device->compute());
  }
}

const float* FlatGradient::reduced() const {
  if (host_) {
    return host_->as<float>();
  }
  return kept_whole_ ? buffer_->as<float>() + owned_.offset : shard_->as<float>();
}

void FlatGradient::wait_reduction() {
  if (reduction_) {
    reduction_->wait_released();
    reduction_.reset();
  }
}

void FlatGradient::forget() {
  accumulated_ = false;
  whole_begun_ = false;
  std::fill(written_.begin(), written_.end(), false);
}

std::int64_t FlatGradient::held_nbytes() const {
  if (host_) {
    return static_cast<std::int64_t>(host_->nbytes());
  }
  return static_cast<std::int64_t>((kept_whole_ ? buffer_ : shard_)->nbytes());
}

}  // namespace acc::sharding
