#include "sharding/flat_parameter.hpp"

#include "acc/base/error.hpp"
#include "sharding/gradient_offload.hpp"
#include "sharding/host_array.hpp"

#include <algorithm>

namespace acc::sharding {
namespace {

FlatLayout layout_of(const Engine& engine, const std::vector<ParameterRecord>& parameters) {
  std::vector<std::int64_t> numels;
  for (const ParameterRecord& each : parameters) {
    numels.push_back(each.numel);
  }
  // ZeRO 0 keeps everything, yet is reduced and saved in slices.
  const auto& slices = engine.on.shard_optimizer ? engine.groups.shard : engine.groups.world;
  return lay_out(numels, slices->size());
}

std::uint64_t stream_of(std::string_view name, std::uint64_t seed) {
  std::uint64_t hash = 1469598103934665603ULL ^ seed;  // FNV-1a, 64 bit
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  }
  return hash;
}

}  // namespace

FlatParameter::FlatParameter(Engine& engine, std::string unit_name,
                             std::vector<ParameterRecord> parameters, bool trainable)
    : engine_(engine),
      unit_name_(std::move(unit_name)),
      parameters_(std::move(parameters)),
      trainable_(trainable),
      layout_(layout_of(engine, parameters_)),
      storage_(make_weight_storage(engine, layout_)),
      keeps_full_gradient_(!engine.on.shard_gradients),
      written_(parameters_.size(), false) {
  if (!master_is_gathered()) {
    master_ = engine_.allocate_state(owned().numel, "master weights");
  }
  if (engine_.low_precision() && engine_.offload_optimizer() != storage_->own_offloaded()) {
    const std::size_t nbytes =
        static_cast<std::size_t>(owned().numel) * nbytes_of(engine_.compute_dtype);
    rounded_ = engine_.offload_optimizer()
                   ? engine_.device->allocate_host(nbytes, "rounded weights")
                   : engine_.device->allocate(nbytes, "rounded weights");
  }
  if (trainable_) {
    allocate_gradients();
  }
}

void FlatParameter::allocate_gradients() {
  if (engine_.offload_optimizer()) {
    host_gradient_ = engine_.allocate_state(owned().numel, "gradients");
  }
  if (keeps_full_gradient_) {
    gradient_buffer_ = engine_.groups.world->allocate_contribution(
        static_cast<std::size_t>(layout_.padded_numel) * sizeof(float));
  } else if (!engine_.offload_optimizer()) {
    auto& group = engine_.groups.replicate ? *engine_.groups.replicate : *engine_.groups.shard;
    shard_gradient_ =
        group.allocate_contribution(static_cast<std::size_t>(layout_.shard_numel) * sizeof(float));
  }
}

// --- weights ---

/// Where dtype and place of what is gathered are the optimizer's, there is one copy of both.
bool FlatParameter::master_is_gathered() const noexcept {
  return !engine_.low_precision() && engine_.offload_optimizer() == storage_->own_offloaded();
}

float* FlatParameter::master() {
  return master_ ? master_->as<float>() : reinterpret_cast<float*>(storage_->own());
}

void* FlatParameter::rounded() {
  if (!engine_.low_precision()) {
    return nullptr;
  }
  return rounded_ ? rounded_->data() : storage_->own();
}

void FlatParameter::initialize(std::uint64_t seed) {
  HostArray values(*engine_.updater, master(), owned().numel);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Overlap part = overlap(layout_, i, owned());
    if (part.numel > 0) {
      parameters_[i].initializer(
          stream_of(parameters_[i].name, seed), part.in_parameter,
          {values.data() + part.in_shard, static_cast<std::size_t>(part.numel)});
    }
  }
  values.write_back();
  round_master();
}

void FlatParameter::round_master() {
  if (void* const to = rounded()) {
    engine_.updater->cast(master(), DType::float32, to, engine_.compute_dtype,
                          static_cast<std::size_t>(owned().numel), engine_.updater->compute());
  }
}

std::vector<float> FlatParameter::gather_master() {
  device::Device& device = *engine_.device;
  const std::size_t nbytes = static_cast<std::size_t>(owned().numel) * sizeof(float);
  std::vector<float> result(static_cast<std::size_t>(layout_.padded_numel));
  if (!engine_.on.shard_optimizer) {
    engine_.updater->copy(result.data(), master(), nbytes, engine_.updater->compute());
    engine_.updater->synchronize();
    return result;
  }
  device::MemoryPtr shard;
  const float* from = master();
  if (engine_.offload_optimizer()) {
    shard = device.allocate(nbytes, "gathered master weights");
    device.copy(shard->data(), from, nbytes, device.compute());
    from = shard->as<float>();
  }
  const auto full = device.allocate(result.size() * sizeof(float), "gathered master weights");
  engine_.groups.shard->all_gather(from, full->data(), nbytes)->wait_released();
  device.copy(result.data(), full->data(), full->nbytes(), device.compute());
  device.synchronize();
  return result;
}

void FlatParameter::publish() {
  const auto numel = static_cast<std::size_t>(owned().numel);
  device::Device& device = *engine_.device;
  if (rounded_) {
    device.copy(storage_->own(), rounded_->data(), numel * nbytes_of(engine_.compute_dtype),
                device.compute());
  } else if (master_ && !engine_.low_precision()) {
    device.copy(storage_->own(), master_->data(), numel * sizeof(float), device.compute());
  }
  storage_->publish();
}

void FlatParameter::begin_unshard() {
  if (unsharded_) {
    return;
  }
  unsharded_ = true;
  const bool copies = storage_->begin_unshard();
  if (!storage_->always_full()) {
    engine_.traffic.gathered_elements += layout_.numel;
    engine_.traffic.gathered_elements_moved += copies ? layout_.numel : 0;
    engine_.traffic.gather_calls += 1;
  }
}

const void* FlatParameter::unshard() {
  begin_unshard();
  if (view_ != nullptr) {
    return view_;
  }
  {
    const trace::Scope scope(engine_.tracer.get(), "wait", "for the gather of",
                             unit_name_.empty() ? "root" : unit_name_);
    view_ = storage_->finish_unshard();
  }
  if (engine_.view_dtype != engine_.compute_dtype) {
    const auto numel = static_cast<std::size_t>(layout_.padded_numel);
    widened_ = engine_.scratch->acquire(numel * nbytes_of(engine_.view_dtype));
    engine_.device->cast(view_, engine_.compute_dtype, widened_->data(), engine_.view_dtype, numel,
                         engine_.device->compute());
    view_ = widened_->data();
  }
  return view_;
}

void FlatParameter::reshard(bool gathers_again) {
  if (widened_) {
    engine_.scratch->release(std::move(widened_));
  }
  view_ = nullptr;
  storage_->reshard(gathers_again);
  unsharded_ = false;
}

// --- gradients ---

void FlatParameter::open_gradients() {
  if (!trainable_ || gradients_open()) {
    return;
  }
  const auto numel = static_cast<std::size_t>(layout_.padded_numel);
  if (!keeps_full_gradient_) {
    gradient_buffer_ = engine_.gradients->acquire(numel * nbytes_of(engine_.compute_dtype));
  }
  const DType reduced_in = keeps_full_gradient_ ? DType::float32 : engine_.compute_dtype;
  if (engine_.view_dtype != reduced_in) {
    gradient_scratch_ = engine_.scratch->acquire(numel * nbytes_of(engine_.view_dtype));
  }
  target_ = gradient_scratch_ ? gradient_scratch_->data() : gradient_buffer_->data();
}

FlatParameter::Target FlatParameter::gradient(std::size_t index) {
  open_gradients();
  const auto offset = static_cast<std::size_t>(layout_.offsets[index]);
  const Target target{target_ + offset * nbytes_of(engine_.view_dtype), written_[index]};
  written_[index] = true;
  return target;
}

void FlatParameter::zero_unwritten() {
  const std::size_t width = nbytes_of(engine_.view_dtype);
  const auto zero = [&](std::int64_t begin, std::int64_t end) {
    if (begin < end) {
      engine_.device->zero(target_ + static_cast<std::size_t>(begin) * width,
                           static_cast<std::size_t>(end - begin) * width,
                           engine_.device->compute());
    }
  };
  std::int64_t end = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    zero(end, layout_.offsets[i]);  // the gap before it
    end = layout_.offsets[i] + layout_.numels[i];
    if (!written_[i]) {
      zero(layout_.offsets[i], end);
    }
  }
  zero(end, layout_.padded_numel);
  std::fill(written_.begin(), written_.end(), false);
}

void FlatParameter::close_gradients(bool last) {
  if (!trainable_) {
    return;
  }
  if (!keeps_full_gradient_) {
    open_gradients();  // a unit whose backward wrote nothing still takes part in the reduction
    reduce_to_shard();
    return;
  }
  if (engine_.view_dtype != DType::float32) {
    add_to_full();
  }
  if (last) {
    reduce_full();
  }
}

void FlatParameter::reduce_to_shard() {
  zero_unwritten();
  device::Device& device = *engine_.device;
  if (gradient_scratch_) {
    device.cast(gradient_scratch_->data(), engine_.view_dtype, gradient_buffer_->data(),
                engine_.compute_dtype, static_cast<std::size_t>(layout_.padded_numel),
                device.compute());
    engine_.scratch->release(std::move(gradient_scratch_));
  }
  target_ = nullptr;
  device::MemoryPtr offloaded;
  if (engine_.offload_optimizer()) {
    offloaded = engine_.gradient_offload->acquire(layout_.shard_numel);
  }
  const bool accumulate = accumulated_ && !offloaded;
  reduction_ = engine_.groups.shard->reduce_scatter(
      gradient_buffer_->data(), offloaded ? offloaded->as<float>() : shard_gradient_->as<float>(),
      static_cast<std::size_t>(layout_.shard_numel), engine_.compute_dtype,
      {.scale = engine_.gradient_scale, .accumulate = accumulate});
  std::function<void()> reduced;
  if (offloaded) {
    reduced = [this, offloaded, adds = accumulated_] { offload_reduced(offloaded, adds); };
  }
  accumulated_ = true;
  engine_.gradients->in_flight(std::move(gradient_buffer_), reduction_, std::move(reduced));
  engine_.traffic.reduced_elements += layout_.numel;
  engine_.traffic.reduce_calls += 1;
  engine_.groups.shard->progress();
}

void FlatParameter::offload_reduced(const device::MemoryPtr& reduced, bool accumulate) {
  if (engine_.groups.replicate) {
    all_reduce_replicas(reduced->as<float>())->wait_released();
  }
  engine_.gradient_offload->bring(reduced, host_gradient_->as<float>(), layout_.shard_numel,
                                  accumulate);
}

/// Gradients that are kept whole are accumulated in float32 over the micro-steps.
void FlatParameter::add_to_full() {
  open_gradients();
  zero_unwritten();
  engine_.device->add_scaled(
      gradient_scratch_->data(), engine_.view_dtype, gradient_buffer_->as<float>(),
      static_cast<std::size_t>(layout_.padded_numel), 1.0F, full_begun_, engine_.device->compute());
  engine_.scratch->release(std::move(gradient_scratch_));
  full_begun_ = true;
  target_ = nullptr;
}

void FlatParameter::reduce_full() {
  if (!full_begun_) {
    open_gradients();
    zero_unwritten();
  }
  float* const full = gradient_buffer_->as<float>();
  auto& world = *engine_.groups.world;
  if (engine_.on.shard_optimizer) {
    reduction_ = world.reduce_scatter(full, full + owned().offset,
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
  accumulated_ = true;
  target_ = nullptr;
  world.progress();
}

void FlatParameter::flush_gradients() {
  if (!trainable_) {
    return;
  }
  if (keeps_full_gradient_ ? !accumulated_ : gradients_open() || !accumulated_) {
    close_gradients(true);
  }
}

void FlatParameter::all_reduce_replicas() {
  if (shard_gradient_) {
    reduction_ = all_reduce_replicas(shard_gradient_->as<float>());
  }
}

collectives::WorkPtr FlatParameter::all_reduce_replicas(float* shard) {
  engine_.traffic.all_reduced_elements += layout_.shard_numel;
  engine_.traffic.all_reduce_calls += 1;
  return engine_.groups.replicate->all_reduce(shard, static_cast<std::size_t>(layout_.shard_numel),
                                              1.0F);
}

void FlatParameter::bring_gradients() {
  if (host_gradient_ && keeps_full_gradient_) {
    engine_.device->copy(host_gradient_->data(), gradient_buffer_->as<float>() + owned().offset,
                         static_cast<std::size_t>(owned().numel) * sizeof(float),
                         engine_.device->compute());
  }
}

const float* FlatParameter::reduced_gradient() const {
  if (host_gradient_) {
    return host_gradient_->as<float>();
  }
  return keeps_full_gradient_ ? gradient_buffer_->as<float>() + owned().offset
                              : shard_gradient_->as<float>();
}

void FlatParameter::wait_reduction() {
  if (reduction_) {
    reduction_->wait_released();
    reduction_.reset();
  }
}

void FlatParameter::settle() {
  wait_reduction();
  storage_->settle();
}

void FlatParameter::forget_gradients() {
  accumulated_ = false;
  full_begun_ = false;
  std::fill(written_.begin(), written_.end(), false);
}

// --- figures ---

std::int64_t FlatParameter::master_nbytes() const {
  return master_ ? static_cast<std::int64_t>(master_->nbytes()) : storage_->held_nbytes();
}

std::int64_t FlatParameter::gradient_nbytes() const {
  if (!trainable_) {
    return 0;
  }
  if (host_gradient_) {
    return static_cast<std::int64_t>(host_gradient_->nbytes());
  }
  const auto& buffer = keeps_full_gradient_ ? gradient_buffer_ : shard_gradient_;
  return static_cast<std::int64_t>(buffer->nbytes());
}

std::int64_t FlatParameter::gathered_nbytes() const {
  return master_ ? storage_->held_nbytes() : 0;
}

}  // namespace acc::sharding
