#include "sharding/flat_gradient.hpp"

#include "sharding/gradient_offload.hpp"

#include <algorithm>
#include <cmath>
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

/// Allocates the memory that lives as long as the object. The groups' allocations are collective,
/// so the conditions may only depend on values that are equal on all ranks.
void FlatGradient::allocate() {
  if (engine_.offload_optimizer()) {
    host_ = engine_.allocate_state(owned_.numel, "gradients");
  }
  if (kept_whole_) {
    buffer_ = engine_.groups.world->allocate_contribution(
        static_cast<std::size_t>(layout_.padded_numel) * sizeof(float));
  } else if (!engine_.offload_optimizer()) {
    // The shard is an input of the all_reduce over replicas, so its readers are the replicas.
    auto& group = engine_.groups.replicate ? *engine_.groups.replicate : *engine_.groups.shard;
    shard_ =
        group.allocate_contribution(static_cast<std::size_t>(layout_.shard_numel) * sizeof(float));
  }
}

void FlatGradient::open() {
  if (is_open()) {
    return;
  }
  const std::size_t nbytes =
      static_cast<std::size_t>(layout_.padded_numel) * nbytes_of(engine_.precision.viewed);
  if (!writes_to_buffer()) {
    scratch_ = engine_.scratch->acquire(nbytes);
  } else if (!kept_whole_) {
    buffer_ = engine_.gradients->acquire(nbytes);
  }
  target_ = scratch_ ? scratch_->data() : buffer_->data();
}

/// A gradient that is accumulated over micro-steps (kept whole, or under no_sync) must be float32
/// in the memory that the program adds to. A sharded gradient of one micro-step need not be.
bool FlatGradient::writes_to_buffer() const {
  const DType viewed = engine_.precision.viewed;
  if (kept_whole_ || unreduced_ || engine_.no_sync_depth > 0) {
    return viewed == DType::float32 && (kept_whole_ || viewed == engine_.precision.reduced);
  }
  return viewed == engine_.precision.reduced;
}

FlatGradient::Target FlatGradient::target(std::size_t index) {
  open();
  const auto offset = static_cast<std::size_t>(layout_.offsets[index]);
  const Target target{target_ + offset * nbytes_of(engine_.precision.viewed), written_[index]};
  written_[index] = true;
  return target;
}

/// Fills with zeros what the program did not write: unwritten parameters and the gaps between
/// parameters. Pooled memory still contains the gradients of another unit there.
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
    zero(end, layout_.offsets[i]);  // the gap before this parameter
    end = layout_.offsets[i] + layout_.numels[i];
    if (!written_[i]) {
      zero(layout_.offsets[i], end);
    }
  }
  zero(end, layout_.padded_numel);
  std::fill(written_.begin(), written_.end(), false);
}

void FlatGradient::close(bool last) {
  watch();
  ++engine_.gradients_closed;
  // Whole gradients are reduced once per step, sharded ones in every micro-step (as DeepSpeed
  // does); under no_sync neither is.
  end((last || !kept_whole_) && engine_.no_sync_depth == 0);
}

void FlatGradient::end(bool reduces) {
  // A float32 view is its own sum: from the second micro-step on, the program adds (beta 1).
  // Another view dtype needs a separate float32 sum, to which each micro-step is added.
  const bool accumulates_apart = engine_.precision.viewed != DType::float32;
  if (kept_whole_) {
    if (accumulates_apart) {
      add_to_sum();
    }
    if (reduces) {
      reduce_whole();
    }
  } else if (reduces) {
    reduce_to_shard();
  } else {
    waits_ = true;
    if (accumulates_apart) {
      add_to_sum();
    }
  }
}

/// Sends the whole gradient into the reduce_scatter of the shard group. All ranks reach this for
/// the same flat parameters in the same order, because they end the same micro-steps in the same
/// order.
void FlatGradient::reduce_to_shard() {
  if (unreduced_) {  // earlier micro-steps under no_sync
    add_to_sum();
    contribute(unreduced_->data(), DType::float32);
    engine_.sums->release(std::move(unreduced_));
  } else {
    open();  // a unit whose backward wrote nothing still takes part in the reduction
    zero_unwritten();
    contribute(target_, engine_.precision.viewed);
  }
  if (scratch_) {
    engine_.scratch->release(std::move(scratch_));
  }
  target_ = nullptr;
  sum_begun_ = false;
  waits_ = false;
  device::MemoryPtr offloaded;
  if (engine_.offload_optimizer()) {
    offloaded = engine_.gradient_offload->acquire(layout_.shard_numel);
  }
  // An offloaded gradient is accumulated in host memory, by GradientOffload.
  const bool accumulate = accumulated_ && !offloaded;
  reduction_ = engine_.groups.shard->reduce_scatter(
      buffer_->data(), offloaded ? offloaded->as<float>() : shard_->as<float>(),
      static_cast<std::size_t>(layout_.shard_numel), engine_.precision.reduced,
      {.scale = engine_.gradient_scaling.after, .accumulate = accumulate});
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

/// Puts this rank's whole gradient into `buffer_`, which peers read: scaled by the part of the mean
/// that precedes the sum, and in the reduced dtype. Does nothing if the program wrote it there.
/// from: [padded_numel] of `dtype`.
void FlatGradient::contribute(std::byte* from, DType dtype) {
  device::Device& device = *engine_.device;
  const auto numel = static_cast<std::size_t>(layout_.padded_numel);
  const DType reduced = engine_.precision.reduced;
  if (!buffer_) {
    buffer_ = engine_.gradients->acquire(numel * nbytes_of(reduced));
  }
  const float scale = engine_.gradient_scaling.before;
  device::MemoryPtr widened;
  if (scale != 1.0F) {
    if (dtype != DType::float32) {
      widened = engine_.scratch->acquire(numel * sizeof(float));
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
    engine_.scratch->release(std::move(widened));
  }
}

/// Runs when the reduction has ended: replicas are summed on the GPU, in every micro-step, because
/// the sum over micro-steps is in host memory.
void FlatGradient::offload(const device::MemoryPtr& reduced, bool accumulate) {
  if (engine_.groups.replicate) {
    all_reduce_replicas(reduced->as<float>())->wait_released();
  }
  engine_.gradient_offload->bring(reduced, host_->as<float>(), layout_.shard_numel, accumulate);
}

/// Adds the micro-step's gradient to the float32 sum over micro-steps: `buffer_` if gradients are
/// kept whole, `unreduced_` under no_sync. The first micro-step overwrites the sum.
void FlatGradient::add_to_sum() {
  const auto numel = static_cast<std::size_t>(layout_.padded_numel);
  open();
  zero_unwritten();
  if (!kept_whole_ && !unreduced_) {
    unreduced_ = engine_.sums->acquire(numel * sizeof(float));
  }
  float* const sum = kept_whole_ ? buffer_->as<float>() : unreduced_->as<float>();
  engine_.device->add_scaled(target_, engine_.precision.viewed, sum, numel, 1.0F, sum_begun_,
                             engine_.device->compute());
  if (scratch_) {
    engine_.scratch->release(std::move(scratch_));
  }
  sum_begun_ = true;
  target_ = nullptr;
}

/// Reduces a whole gradient in place, once per step.
void FlatGradient::reduce_whole() {
  if (!sum_begun_) {  // the program wrote into the buffer itself, or nothing
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
                                      {.scale = engine_.gradient_scaling.after});
    engine_.traffic.reduced_elements += layout_.numel;
    engine_.traffic.reduce_calls += 1;
  } else {
    reduction_ = world.all_reduce(full, static_cast<std::size_t>(layout_.padded_numel),
                                  engine_.gradient_scaling.after);
    engine_.traffic.all_reduced_elements += layout_.numel;
    engine_.traffic.all_reduce_calls += 1;
  }
  world.progress();
  if (!engine_.settings.sharding.overlap_comm) {
    wait_reduction();
  }
}

/// Turns the sum over this rank's micro-steps into their mean. The factors of the mean also divide
/// by the number of ranks, whose gradients are not in this sum; the multiplication undoes that.
void FlatGradient::average_own() {
  float* const full = buffer_->as<float>();
  const auto ranks = static_cast<float>(engine_.groups.world->size());
  const GradientScaling& mean = engine_.gradient_scaling;
  engine_.device->add_scaled(full, DType::float32, full,
                             static_cast<std::size_t>(layout_.padded_numel),
                             mean.before * mean.after * ranks, false, engine_.device->compute());
}

void FlatGradient::flush() {
  // Left over are unfinished micro-steps, sums of no_sync, and units that the step did not use. The
  // last send zeros, because their peers issue the reduction as well. All ranks open the same
  // scopes, so the condition has the same value on all of them.
  if (kept_whole_ ? !accumulated_ : is_open() || waits_ || !accumulated_) {
    end(true);
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

float* FlatGradient::reduced() const {
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
  sum_begun_ = false;
  closed_.clear();
  std::fill(written_.begin(), written_.end(), false);
}

std::int64_t FlatGradient::held_nbytes() const {
  const std::int64_t whole =
      waits_ ? layout_.padded_numel * static_cast<std::int64_t>(sizeof(float)) : 0;
  if (host_) {
    return whole + static_cast<std::int64_t>(host_->nbytes());
  }
  return whole + static_cast<std::int64_t>((kept_whole_ ? buffer_ : shard_)->nbytes());
}

// --- the rank with a non-finite gradient ---

/// Adds up the squares of this rank's gradient at the end of a micro-step, before the reduction:
/// the reduced gradient no longer shows which rank it came from. The sum stays on the device and is
/// read only if the global norm is not finite.
void FlatGradient::watch() {
  if (!engine_.watches_gradients()) {
    return;
  }
  device::Device& device = *engine_.device;
  const auto micro_steps =
      static_cast<std::size_t>(std::max(1, engine_.settings.sharding.gradient_accumulation_steps));
  if (!squares_) {
    squares_ = device.allocate(micro_steps * sizeof(double), "gradient watch");
  }
  double* const sum = squares_->as<double>() + std::min(closed_.size(), micro_steps - 1);
  closed_.push_back(engine_.gradients_closed);
  device.zero(sum, sizeof(double), device.compute());
  const DType viewed = engine_.precision.viewed;
  for (std::size_t i = 0; i < written_.size(); ++i) {
    if (!written_[i] || !is_open()) {
      continue;
    }
    const auto numel = static_cast<std::size_t>(layout_.numels[i]);
    std::byte* values = target_ + static_cast<std::size_t>(layout_.offsets[i]) * nbytes_of(viewed);
    device::MemoryPtr widened;
    if (viewed != DType::float32) {
      widened = engine_.scratch->acquire(numel * sizeof(float));
      device.cast(values, viewed, widened->data(), DType::float32, numel, device.compute());
      values = widened->data();
    }
    device.add_squared_norm(reinterpret_cast<const float*>(values), numel, sum, device.compute());
    if (widened) {
      engine_.scratch->release(std::move(widened));
    }
  }
}

std::optional<std::int64_t> FlatGradient::first_non_finite() const {
  device::Device& device = *engine_.device;
  std::vector<double> sums(squares_ ? squares_->nbytes() / sizeof(double) : 0);
  if (!sums.empty()) {
    device.copy(sums.data(), squares_->data(), squares_->nbytes(), device.compute());
    device.record(device.compute())->synchronize();
  }
  for (std::size_t i = 0; i < std::min(sums.size(), closed_.size()); ++i) {
    if (!std::isfinite(sums[i])) {
      return closed_[i];
    }
  }
  return std::nullopt;
}

}  // namespace acc::sharding
